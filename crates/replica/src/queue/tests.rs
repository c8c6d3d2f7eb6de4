use thalweg_log::Purpose;
use thalweg_types::{
    Durability, KeyspaceId,
    command::{CommandError, Framed, RedisBuilder, encode_put},
};

use super::*;

const NOW: Duration = Duration::from_secs(1);

fn pending(value_bytes: usize) -> Pending {
    let mut command = Framed::new();
    command.encode(|out| encode_put(out, KeyspaceId(1), b"k", &vec![0; value_bytes])).unwrap();
    Pending::new(command, Durability::Os, Purpose::Data, None, None)
}

/// Takes the next entries. Returns the number of proposals up to the end of each entry.
fn take(queue: &Queue) -> Vec<usize> {
    let mut taken = DequeuedProposals::default();
    queue.take_entries(&mut taken, false, Lanes::All, NOW);
    taken.ends
}

/// Takes all commands of the queue, and waits until pauses end.
fn drain(queue: &Queue) {
    let mut now = NOW;
    while let Some(pause) = queue.time_to_next(now) {
        now += pause;
        queue.take_entries(&mut DequeuedProposals::default(), false, Lanes::All, now);
    }
}

/// Tests how the queue cuts commands of the given sizes into entries: returns the number of commands of each entry.
fn entries(commands: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let queue = Queue::new(usize::MAX);
    commands.into_iter().for_each(|bytes| queue.push(pending(bytes), WhenFull::Refuse).unwrap());
    let mut found = Vec::new();
    while !queue.is_empty() {
        found.push(take(&queue).last().copied().unwrap());
    }
    assert_eq!(queue.bytes_and_len(), (0, 0));
    found
}

#[test]
fn an_entry_takes_so_many_commands_and_bytes() {
    assert_eq!(entries(vec![0; MAX_ENTRY_COMMANDS + 1]), [MAX_ENTRY_COMMANDS, 1]);
    let head = pending(0).command.bytes().len();
    assert_eq!(entries([MAX_ENTRY_BYTES / 2 - head; 3]), [2, 1], "exactly the maximum bytes");
    assert_eq!(entries([MAX_ENTRY_BYTES / 2 - head, MAX_ENTRY_BYTES / 2 - head + 1]), [1, 1]);
    assert_eq!(entries([0, MAX_ENTRY_BYTES * 2, 0]), [1, 1, 1], "a larger command is alone");
}

/// Creates a proposal with a batch of two Redis commands: a `SET`, and the command `args`.
fn burst(args: &[&[u8]]) -> Pending {
    burst_of(None, args)
}

fn burst_of(client: Option<&Arc<Client>>, args: &[&[u8]]) -> Pending {
    let mut builder = RedisBuilder::new(KeyspaceId(1));
    builder.push(&[b"set", b"k", b"v"]).unwrap().push(args).unwrap();
    let (mut command, bytes) = (Framed::new(), builder.finish());
    let copied = command.encode(|out| {
        out.extend_from_slice(&bytes);
        Ok::<_, CommandError>(())
    });
    copied.unwrap();
    Pending::new(command, Durability::Os, Purpose::Data, None, client.cloned())
}

#[test]
fn pipelines_of_sixteen_sets_of_fifty_clients_are_committed_together() {
    let queue = Queue::new(usize::MAX);
    for _ in 0..50 {
        let mut builder = RedisBuilder::new(KeyspaceId(1));
        (0..16).for_each(|_| _ = builder.push(&[b"SET", b"key:000000000001", &[b'v'; 100]]).unwrap());
        let mut command = Framed::new();
        let encode = |out: &mut Vec<u8>| {
            out.extend_from_slice(&builder.finish());
            Ok::<_, CommandError>(())
        };
        command.encode(encode).unwrap();
        let pending = Pending::new(command, Durability::Os, Purpose::Data, None, Some(client()));
        queue.push(pending, WhenFull::Refuse).unwrap();
    }
    assert_eq!(take(&queue), [50]);
    assert!(queue.is_empty());
}

/// Fills a queue with 2,000 equal proposals, takes one batch, and returns the number of commands in each of its
/// entries.
fn batch(proposal: impl Fn() -> Pending) -> Vec<usize> {
    let queue = Queue::new(usize::MAX);
    (0..2_000).for_each(|_| queue.push(proposal(), WhenFull::Refuse).unwrap());
    let ends = take(&queue);
    let before = std::iter::once(0).chain(ends.iter().copied());
    ends.iter().zip(before).map(|(end, before)| end - before).collect()
}

#[test]
fn entries_are_cut_by_the_steps_of_their_commands_and_written_together_up_to_a_bound() {
    assert_eq!(batch(|| burst(&[b"keys", b"*"])), [1; (MAX_BATCH_STEPS / MAX_ENTRY_STEPS) as usize]);
    let steps = burst(&[b"get", b"k"]).steps(false);
    let each = (MAX_ENTRY_STEPS / steps) as usize;
    assert!(each > 2, "a few reads of large values fit into an entry");
    let gets = batch(|| burst(&[b"get", b"k"]));
    assert!(gets.len() >= 4 && gets[..4] == [each; 4], "{gets:?}");
    let small = batch(|| {
        let mut proposal = burst(&[b"get", b"k"]);
        proposal.value_reads = Some(20);
        proposal
    });
    assert!(small.iter().sum::<usize>() == 2_000 && small[0] > 500, "reads of values known to be small: {small:?}");
    let writes = batch(|| burst(&[b"del", b"k"]));
    assert!(writes.iter().sum::<usize>() == 2_000 && writes[0] > 500, "{writes:?}");
}

fn client() -> Arc<Client> {
    Client::new(&Arc::default())
}

fn push(queue: &Queue, client: &Arc<Client>, args: &[&[u8]]) {
    queue.push(burst_of(Some(client), args), WhenFull::Refuse).unwrap();
}

/// Takes the next entries. Returns the clients of the taken commands in order; `steps` are the steps (units of work)
/// that each entry took.
fn take_clients(queue: &Queue, steps: &[u64]) -> Vec<Option<Arc<Client>>> {
    let mut taken = DequeuedProposals::default();
    queue.take_entries(&mut taken, false, Lanes::All, NOW);
    taken.steps = steps.to_vec();
    taken.learn();
    taken.proposals.iter().map(|pending| pending.client.clone()).collect()
}

/// Returns true if the lists contain the same clients in the same order.
fn are(found: &[Option<Arc<Client>>], expected: &[&Arc<Client>]) -> bool {
    found.len() == expected.len()
        && found.iter().zip(expected).all(|(one, other)| one.as_ref().is_some_and(|one| Arc::ptr_eq(one, other)))
}

#[test]
fn cheap_commands_pass_expensive_ones_and_both_lanes_alternate() {
    let (queue, expensive, cheap) = (Queue::new(usize::MAX), client(), client());
    (0..10).for_each(|_| push(&queue, &expensive, &[b"keys", b"*"]));
    (0..3).for_each(|_| push(&queue, &cheap, &[b"set", b"k", b"v"]));
    assert!(are(&take_clients(&queue, &[]), &[&cheap; 3]), "cheap commands do not wait for the queued ones");
    push(&queue, &cheap, &[b"set", b"k", b"v"]);
    let mut taken = DequeuedProposals::default();
    queue.take_entries(&mut taken, false, Lanes::All, NOW);
    assert_eq!(taken.proposals.len(), 1, "one at a time");
    taken.begin_probable_pauses(NOW);
    push(&queue, &cheap, &[b"set", b"k", b"v"]);
    assert!(are(&take_clients(&queue, &[]), &[&cheap; 2]));
    assert!(take_clients(&queue, &[]).is_empty(), "a pause follows the turn");
    assert_eq!(queue.bytes_and_len().1, 9);
    drain(&queue);
}

#[test]
fn commands_of_a_client_keep_their_order() {
    let (queue, client) = (Queue::new(usize::MAX), client());
    push(&queue, &client, &[b"set", b"k", b"1"]);
    push(&queue, &client, &[b"keys", b"*"]);
    push(&queue, &client, &[b"set", b"k", b"2"]);
    let (mut lengths, mut taken) = (Vec::new(), DequeuedProposals::default());
    while !queue.is_empty() {
        queue.take_entries(&mut taken, false, Lanes::All, NOW);
        lengths.extend(taken.proposals.iter().map(|pending| pending.steps.unwrap_or(0) > EXPENSIVE_STEPS));
        taken.clear();
    }
    assert_eq!(lengths, [false, true, false], "what follows an expensive command waits with it");
}

#[test]
fn an_address_pauses_after_a_turn_if_other_clients_had_commands_since_its_last_one() {
    let (queue, expensive, cheap) = (Queue::new(usize::MAX), client(), client());
    let mut now = NOW;
    let mut pause_after_turn = || {
        push(&queue, &expensive, &[b"keys", b"*"]);
        let mut taken = DequeuedProposals::default();
        queue.take_entries(&mut taken, false, Lanes::All, now);
        assert_eq!(taken.proposals.len(), 1);
        taken.steps.push(10_000);
        taken.begin_pauses(now, Duration::from_millis(1));
        push(&queue, &expensive, &[b"keys", b"*"]);
        let pause = queue.time_to_next(now).unwrap();
        now += pause;
        drain(&queue);
        assert_eq!(pause.is_zero(), !taken.delays_others());
        pause
    };
    let commit_of = |client: &Arc<Client>| {
        push(&queue, client, &[b"set", b"k", b"1"]);
        assert_eq!(queue.time_to_next(NOW), Some(Duration::ZERO));
        queue.take_entries(&mut DequeuedProposals::default(), false, Lanes::Ready, NOW);
    };
    assert_eq!(pause_after_turn(), Duration::ZERO);
    commit_of(&expensive);
    assert_eq!(pause_after_turn(), Duration::ZERO, "its own cheap commands");
    commit_of(&cheap);
    commit_of(&expensive);
    assert!(pause_after_turn() > Duration::ZERO);
    assert_eq!(pause_after_turn(), Duration::ZERO, "nobody else wrote since");
}

#[test]
fn a_turn_that_delays_others_is_short_and_other_addresses_do_not_pause_with_it() {
    let (queue, cheap) = (Queue::new(usize::MAX), client());
    let clients: [_; 2] = std::array::from_fn(|_| client());
    for client in &clients {
        // Two commands take a long turn.
        (0..40).for_each(|_| client.learn(MAX_ENTRY_STEPS, LONG_TURN_STEPS / 2));
    }
    let take = |lanes, now| {
        let mut taken = DequeuedProposals::default();
        queue.take_entries(&mut taken, false, lanes, now);
        taken.begin_probable_pauses(now);
        assert!(taken.delaying.is_empty() || taken.proposals.iter().all(|pending| pending.turn > 0));
        taken.proposals.iter().map(|pending| pending.client.clone().unwrap()).collect::<Vec<_>>()
    };
    (0..20).for_each(|_| push(&queue, &clients[0], &[b"keys", b"*"]));
    let alone = take(Lanes::All, NOW).len();
    push(&queue, &cheap, &[b"set", b"k", b"1"]);
    assert_eq!(take(Lanes::Ready, NOW).len(), 1);
    let contended = take(Lanes::All, NOW).len();
    assert!(contended < alone && contended >= 1, "{alone} {contended}");
    let pause = queue.time_to_next(NOW).unwrap();
    assert!(pause > Duration::ZERO && take(Lanes::All, NOW).is_empty());
    push(&queue, &clients[1], &[b"keys", b"*"]);
    assert!(Arc::ptr_eq(&take(Lanes::All, NOW)[0], &clients[1]));
    assert!(Arc::ptr_eq(&take(Lanes::All, NOW + pause)[0], &clients[0]));
    // While the address makes long pauses, fewer of its commands may wait.
    (0..5).for_each(|_| _ = clients[0].address().pause().begin_probable(NOW, MAX_ENTRY_STEPS));
    let accepted = (0..1_000)
        .take_while(|_| queue.push(burst_of(Some(&clients[0]), &[b"keys", b"*"]), WhenFull::Refuse).is_ok())
        .count();
    assert!(accepted < 1_000, "{accepted}");
}

#[test]
fn a_serving_thread_takes_ready_commands_only() {
    let (queue, client) = (Queue::new(usize::MAX), client());
    push(&queue, &client, &[b"keys", b"*"]);
    let mut taken = DequeuedProposals::default();
    queue.take_entries(&mut taken, false, Lanes::Ready, NOW);
    assert!(taken.proposals.is_empty() && taken.ends.is_empty() && !queue.is_empty());
    queue.take_entries(&mut taken, false, Lanes::All, NOW);
    assert!(taken.proposals.len() == 1 && queue.is_empty());
}

#[test]
fn commands_that_turn_out_cheap_no_longer_wait_for_their_turn() {
    let (queue, client, other) = (Queue::new(usize::MAX), client(), client());
    let mut rounds = 0;
    while queue.is_expensive(&mut burst_of(Some(&client), &[b"get", b"k"])) {
        push(&queue, &client, &[b"get", b"k"]);
        assert!(are(&take_clients(&queue, &[100]), &[&client]));
        rounds += 1;
    }
    assert!((3..20).contains(&rounds), "{rounds}");
    // Once entries with commands of both clients take long, it is unknown which client is expensive. So both are
    // measured again.
    for client in [&client, &other] {
        (0..30).for_each(|_| client.learn(1_000_000, 0));
        push(&queue, client, &[b"get", b"k"]);
    }
    assert!(are(&take_clients(&queue, &[300_000]), &[&client, &other]));
    for client in [&client, &other] {
        assert!(queue.is_expensive(&mut burst_of(Some(client), &[b"get", b"k"])));
    }
}

#[test]
fn entries_of_a_turn_have_one_client_each() {
    let queue = Queue::new(usize::MAX);
    let clients: Vec<_> = (0..3).map(|_| client()).collect();
    for client in &clients {
        // The commands are cheap enough to share a turn, and too expensive to be ready.
        (0..5).for_each(|_| client.learn(1_000_000, 0));
        (0..2).for_each(|_| push(&queue, client, &[b"keys", b"*"]));
    }
    let mut taken = DequeuedProposals::default();
    queue.take_entries(&mut taken, false, Lanes::All, NOW);
    assert_eq!(taken.ends, [1, 2, 3, 4], "as many as may be written together");
    drain(&queue);
}

#[test]
fn an_address_has_a_bound_of_waiting_commands_of_its_own() {
    let (queue, address) = (Queue::new(usize::MAX), Arc::default());
    let mut accepted = 0_u64;
    loop {
        match queue.push(burst_of(Some(&Client::new(&address)), &[b"keys", b"*"]), WhenFull::Wait) {
            Ok(()) => accepted += 1,
            Err(error) => break assert!(error.to_string().contains("from this client's address"), "{error}"),
        }
    }
    assert_eq!(accepted, MAX_ADDRESS_STEPS / MAX_ENTRY_STEPS);
    push(&queue, &client(), &[b"keys", b"*"]);
    queue.push(pending(1), WhenFull::Refuse).unwrap();
    drain(&queue);
    assert_eq!(queue.bytes_and_len(), (0, 0));
    // The address may hold no more bytes than remain free.
    let each = burst(&[b"keys", b"*"]).bytes();
    let queue = Queue::new(10 * each);
    let one = Client::new(&address);
    let fill = |client| {
        (0..20).take_while(|_| queue.push(burst_of(Some(client), &[b"keys", b"*"]), WhenFull::Refuse).is_ok()).count()
    };
    assert_eq!((fill(&one), fill(&client())), (5, 3));
}

#[test]
fn a_queue_that_closes_rejects_what_waits_for_its_turn() {
    let (queue, client) = (Queue::new(usize::MAX), client());
    push(&queue, &client, &[b"set", b"k", b"v"]);
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let mut pending = burst_of(Some(&client), &[b"keys", b"*"]);
            let slot = crate::slot::Slot::for_this_thread();
            pending.slot = Some(Arc::clone(&slot));
            queue.push(pending, WhenFull::Refuse).unwrap();
            slot
        })
        .collect();
    queue.close();
    assert!(waiting.iter().all(|slot| matches!(slot.take(), Some(Err(ProposeError::Closed)))));
    assert_eq!(queue.bytes_and_len().1, 1);
    assert!(are(&take_clients(&queue, &[]), &[&client]) && queue.bytes_and_len() == (0, 0));
}

#[test]
fn a_command_that_is_alone_is_one_entry() {
    let queue = Queue::new(usize::MAX);
    queue.push(burst(&[b"keys", b"*"]), WhenFull::Refuse).unwrap();
    let mut taken = DequeuedProposals::default();
    queue.take_entries(&mut taken, true, Lanes::All, NOW);
    assert_eq!((taken.proposals.len(), &taken.ends[..]), (1, &[1][..]));
    taken.clear();
    queue.take_entries(&mut taken, true, Lanes::All, NOW);
    assert_eq!((taken.proposals.len(), taken.ends.len()), (0, 0), "an empty queue");
}

#[test]
fn a_full_queue_refuses_but_takes_what_is_larger_than_itself_when_empty() {
    let queue = Queue::new(100);
    queue.push(pending(1000), WhenFull::Refuse).unwrap();
    assert!(matches!(queue.push(pending(0), WhenFull::Refuse), Err(ProposeError::Overloaded { .. })));
    take(&queue);
    let each = pending(0).command.bytes().len();
    (0..100 / each).for_each(|_| queue.push(pending(0), WhenFull::Refuse).unwrap());
    let full = queue.push(pending(0), WhenFull::Refuse);
    assert!(matches!(full, Err(ProposeError::Overloaded { queued_bytes }) if queued_bytes == 100 / each * each));
}
