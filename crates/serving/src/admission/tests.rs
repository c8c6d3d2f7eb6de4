use std::net::Ipv4Addr;

use super::*;
use crate::{
    config::{AvailableMemory, ByteSize, Layers},
    limits::OWN_BODY_BYTES,
    reserve::least_with_reserve,
};

fn admission(change: impl FnOnce(&mut Config)) -> Arc<Admission> {
    let mut config = Config::default();
    change(&mut config);
    Admission::new(&config)
}

fn address(last: u8) -> AddressKey {
    AddressKey::of(Ipv4Addr::new(127, 0, 0, last).into())
}

/// Takes 1 of a resource until the connection may take no more.
fn take_all(account: &Arc<Account>, resource: Resource) -> Vec<Reservation> {
    std::iter::from_fn(|| account.take(resource, 1)).collect()
}

#[test]
fn a_reply_is_counted_while_somebody_holds_a_part_of_it() {
    let admission = admission(|config| config.max_reply_bytes_in_flight = ByteSize(1 << 20));
    let account = admission.account(AddressKey::LOCAL);
    let large = || Bytes::from(vec![7; 600 << 10]);
    let sent = account.reply(large()).unwrap();
    let part = sent.slice(5..9);
    drop(sent);
    let used = || admission.bound(Resource::ReplyBytes).used();
    assert_eq!(used(), 600 << 10);
    assert!(account.reply(large()).is_none());
    assert!(account.reply(Bytes::from(vec![7; COUNTED_REPLY_BYTES - 1])).is_some(), "small ones are not counted");
    drop(part);
    assert_eq!(used(), 0);
    assert!(account.reply(large()).is_some());
}

#[test]
fn a_bound_holds_and_gives_back() {
    let admission = admission(|config| (config.max_scans, config.share_reserve_percent) = (10, 0));
    let (account, bound) = (admission.account(AddressKey::LOCAL), admission.bound(Resource::Scans));
    let mut first = account.take(Resource::Scans, 6).unwrap();
    assert!(account.take(Resource::Scans, 5).is_none());
    assert!(first.grow(4));
    assert!(!first.grow(1));
    assert_eq!((bound.used(), bound.rejections()), (10, 2));
    assert!(!account.has_room(Resource::Scans));
    assert!(account.take_quietly(Resource::Scans, 1).is_none());
    drop(first);
    assert!(account.has_room(Resource::Scans));
    assert_eq!((bound.used(), bound.rejections()), (0, 3));
    let counted: Vec<_> = (0..11).map(|_| account.count(Resource::Scans)).collect();
    assert_eq!((bound.used(), account.has_room(Resource::Scans)), (11, false));
    drop(counted);
    assert_eq!(bound.used(), 0);
    assert!(account.take(Resource::Scans, 10).is_some());
}

#[test]
fn one_client_alone_uses_everything_but_the_reserve() {
    let admission = admission(|config| config.max_scans = 60);
    let first = admission.account(address(1));
    assert_eq!(take_all(&first, Resource::Scans).len(), 54);
    assert_eq!(admission.bound(Resource::Scans).used(), 0, "all is released");
}

#[test]
fn the_address_that_holds_most_is_refused_first_and_others_always_find_something() {
    let admission = admission(|config| config.max_scans = 60);
    // The greedy client uses as many connections as it likes.
    let greedy: Vec<_> = (0..60).map(|_| admission.account(address(1))).collect();
    let held: Vec<_> = greedy.iter().flat_map(|account| take_all(account, Resource::Scans)).collect();
    assert!((54..=57).contains(&held.len()), "{}", held.len());
    let mut shares = Vec::new();
    for last in 2..5 {
        let account = admission.account(address(last));
        let taken = take_all(&account, Resource::Scans);
        assert!(greedy[0].take(Resource::Scans, 1).is_none(), "the greedy address gets no more");
        shares.push(taken);
    }
    assert!(!shares[0].is_empty() && !shares[1].is_empty(), "{shares:?}");
    // Released amounts go first to addresses that hold little. If these request none, any address gets them.
    drop(held);
    assert!(greedy[0].take(Resource::Scans, 1).is_some());
}

#[test]
fn a_connection_that_holds_little_is_served_although_another_of_its_address_is_greedy() {
    let admission = admission(|config| config.max_scans = 60);
    let (greedy, good) = (admission.account(address(1)), admission.account(address(1)));
    let held = take_all(&greedy, Resource::Scans);
    assert_eq!(held.len(), 54);
    assert!(good.has_room(Resource::Scans));
    let taken = good.take(Resource::Scans, 1).unwrap();
    assert!(greedy.take(Resource::Scans, 1).is_none());
    drop(taken);
    assert!(good.take(Resource::Scans, 1).is_some(), "again and again");
}

#[test]
fn many_greedy_connections_of_an_address_leave_something_for_one_that_holds_nothing() {
    let admission = admission(|config| config.max_requests_in_flight = 4096);
    let greedy: Vec<_> = (0..48).map(|_| admission.account(address(1))).collect();
    // Each connection sends as many requests without an end as HTTP/2 permits.
    let held: Vec<_> =
        greedy.iter().flat_map(|account| (0..128).filter_map(|_| account.take(Resource::Requests, 1))).collect();
    assert!(held.len() > 3_600, "{}", held.len());
    let good = admission.account(address(1));
    let burst: Vec<_> = (0..3).filter_map(|_| good.take(Resource::Requests, 1)).collect();
    assert_eq!(burst.len(), 3);
}

#[test]
fn connecting_again_gives_no_further_share_of_what_outlives_connections() {
    let admission = admission(|config| config.max_connections = 100);
    let held: Vec<_> = (0..200).filter_map(|_| admission.account(address(1)).take(Resource::Connections, 1)).collect();
    assert_eq!(held.len(), 90);
    let other = admission.account(address(2)).take(Resource::Connections, 1);
    assert!(other.is_some());
    let account = admission.account(address(1));
    assert!(account.is_over_share(Resource::Connections));
    assert!(!admission.account(address(2)).is_over_share(Resource::Connections));
}

#[test]
fn half_of_the_reserve_stays_free_of_idle_connections_over_however_many_addresses_they_are_spread() {
    let admission = admission(|config| config.max_connections = 200);
    let connect = |last| admission.account(address(last)).take(Resource::Connections, 1).unwrap();
    let dispensable = |held: &[Reservation]| {
        held.iter().filter(|connection| connection.account().is_over_share(Resource::Connections)).count()
    };
    let mut held: Vec<_> = (0..189).map(connect).collect();
    assert_eq!(dispensable(&held), 0);
    held.push(connect(189));
    assert_eq!(dispensable(&held), 190);
    drop(connect(190));
    // Each reply that is dropped makes room.
    held.pop();
    assert_eq!(dispensable(&held), 0);
}

#[test]
fn the_first_body_bytes_of_each_connection_are_its_own() {
    let admission = admission(|config| {
        config.max_body_bytes = ByteSize(1000);
        config.max_body_bytes_in_flight = ByteSize(100_000);
    });
    let used = || admission.bound(Resource::BodyBytes).used();
    let own = OWN_BODY_BYTES as u64;
    let (greedy, good) = (admission.account(address(1)), admission.account(address(1)));
    let mut held = greedy.take(Resource::BodyBytes, own).unwrap();
    assert_eq!(used(), 0);
    assert!(held.grow(90_000) && !held.grow(20_000));
    assert_eq!(used(), 90_000);
    let mut small = good.take(Resource::BodyBytes, own).unwrap();
    assert_eq!(used(), 90_000);
    small.shrink_to(1);
    held.shrink_to(own + 5);
    assert_eq!(used(), 5);
    drop((held, small));
    assert_eq!((used(), admission.address_count()), (0, 1));
    drop((greedy, good));
    assert_eq!(admission.address_count(), 0);
}

#[test]
fn bounds_hold_while_connections_of_many_threads_take_and_release() {
    let admission = admission(|config| {
        config.max_body_bytes = ByteSize(1000);
        config.max_body_bytes_in_flight = ByteSize(200_000);
    });
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (admission, account) = (&admission, admission.account(address(thread as u8 % 2)));
            for part in 0..2_u64 {
                let account = Arc::clone(&account);
                scope.spawn(move || {
                    for step in 0..5_000_u64 {
                        let taken = account.take(Resource::BodyBytes, (step * 7919 + thread + part) % 60_000);
                        let used = admission.bound(Resource::BodyBytes).used();
                        // A release may be counted before the acquisition that it made room for; the difference is at
                        // most `OWN_BODY_BYTES` for each thread.
                        assert!(used <= 200_000 + 4 * OWN_BODY_BYTES as u64, "{used}");
                        drop(taken);
                    }
                });
            }
        }
    });
    assert_eq!(admission.bound(Resource::BodyBytes).used(), 0);
    for last in 0..2 {
        let account = admission.account(address(last));
        assert!(!account.is_over_share(Resource::BodyBytes));
        assert!(account.take(Resource::BodyBytes, 190_000).is_some());
    }
    assert_eq!(admission.bound(Resource::BodyBytes).used(), 0);
}

#[test]
fn rejected_attempts_never_count() {
    let admission = admission(|config| config.max_reply_bytes_in_flight = ByteSize(64 << 20));
    let bound = admission.bound(Resource::ReplyBytes);
    let holder = admission.account(address(1));
    let _held = holder.take(Resource::ReplyBytes, 63 << 20).unwrap();
    std::thread::scope(|scope| {
        for last in 2..4 {
            let account = admission.account(address(last));
            scope.spawn(move || {
                for _ in 0..20_000 {
                    assert!(account.take(Resource::ReplyBytes, 24 << 20).is_none());
                    assert_eq!(account.held(Resource::ReplyBytes), 0);
                }
            });
        }
        let small = admission.account(address(4));
        while bound.rejections() < 30_000 {
            assert!(bound.used() <= 64 << 20, "{}", bound.used());
            // A rejected attempt of another client takes no room from this one.
            assert!(small.take(Resource::ReplyBytes, 1 << 20).is_some());
        }
    });
    assert_eq!(bound.used(), 63 << 20);
}

#[test]
fn a_reply_that_cannot_be_undone_is_made_small_when_there_is_no_room() {
    let admission = admission(|config| config.max_reply_bytes_in_flight = ByteSize(64 << 20));
    let account = admission.account(address(1));
    assert_eq!(account.reply_room(4 << 20), 4 << 20);
    let _held = account.take(Resource::ReplyBytes, 56 << 20).unwrap();
    assert_eq!(account.reply_room(1 << 20), 1 << 20);
    let less = account.reply_room(4 << 20);
    assert!(less > 0 && less < COUNTED_REPLY_BYTES as u64, "{less}");
    assert_eq!(account.reply_room(100), 100);
    assert_eq!(admission.bound(Resource::ReplyBytes).rejections(), 0);
}

#[test]
fn the_largest_body_is_admitted_even_if_it_needs_the_reserve() {
    let admission = admission(|config| {
        config.max_body_bytes = ByteSize(1 << 20);
        config.max_body_bytes_in_flight = ByteSize(1 << 20);
    });
    let mut held = admission.account(address(1)).empty(Resource::BodyBytes);
    for arrived in 1..=16 {
        assert!(held.grow_to(arrived << 16), "{arrived}");
    }
}

#[test]
fn the_bounds_of_a_small_machine_have_a_reserve_too() {
    let there = AvailableMemory { bytes: 256 << 20, limited_by: None };
    let config = Layers::new().resolve_within(Some(there)).unwrap().config;
    let admission = Admission::new(&config);
    for (resource, step) in
        [(Resource::BodyBytes, 64 << 10), (Resource::ReplyBytes, 256 << 10), (Resource::Snapshots, 1)]
    {
        let (greedy, good) = (admission.account(address(1)), admission.account(address(2)));
        let limit = admission.bound(resource).limit();
        let held: Vec<_> = std::iter::from_fn(|| greedy.take(resource, step)).collect();
        assert!(
            held.len() as u64 * step + limit.div_ceil(10) <= limit + step + resource.own(),
            "{resource:?}: {limit}"
        );
        assert!(good.take(resource, step.max(limit / 20)).is_some(), "{resource:?}: {limit}");
        drop(held);
        let largest = if resource == Resource::BodyBytes { config.max_body_bytes.0 } else { 1 };
        let mut body = greedy.empty(resource);
        assert!((1..=largest.div_ceil(step)).all(|steps| body.grow_to((steps * step).min(largest))), "{resource:?}");
    }
}

#[test]
fn a_reserve_fits_beside_the_largest_request() {
    for largest in (0..1000).chain([16 << 20, u64::MAX / 200]) {
        for percent in [0, 1, 10, 33, 50] {
            let least = least_with_reserve(largest, percent);
            assert!(least - reserve_of(least, percent) >= largest, "{largest} {percent}");
            assert!(largest == 0 || (least - 1) - reserve_of(least - 1, percent) < largest, "{largest} {percent}");
        }
    }
}

#[test]
fn the_largest_holder_is_named() {
    let admission = admission(|_| ());
    let (one, other) = (admission.account(address(1)), admission.account(address(2)));
    let _held = (one.take(Resource::Tails, 3), other.take(Resource::Tails, 5));
    let (key, held) = admission.largest_holder(Resource::Tails).unwrap();
    assert_eq!((key.to_string(), held), ("127.0.0.2".to_owned(), 5));
    let attributed = |to: u8, amount: u64| HashMap::from([(address(to), amount)]);
    let largest = |held| admission.largest_with(Resource::Tails, held).map(|(key, held)| (key.to_string(), held));
    assert_eq!(largest(attributed(1, 4)), Some(("127.0.0.1".to_owned(), 7)), "with what is attributed to it");
    assert_eq!(largest(attributed(9, 8)), Some(("127.0.0.9".to_owned(), 8)), "an address without an account");
    let network = AddressKey::of("2001:db8:1:2:3::4".parse().unwrap());
    assert_eq!(network, AddressKey::of("2001:db8:1:2::9".parse().unwrap()));
    assert_eq!(network.to_string(), "2001:db8:1:2::/64");
}

/// Collects the fields of log lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl tracing::field::Visit for Lines {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push(format!("{field}={value:?}"));
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_log_line_names_the_address_that_holds_most_of_a_reached_bound() {
    let admission = admission(|config| (config.max_scans, config.share_reserve_percent) = (10, 0));
    let (greedy, good) = (admission.account(address(1)), admission.account(address(2)));
    let _held = (greedy.take(Resource::Scans, 9).unwrap(), good.take(Resource::Scans, 1).unwrap());
    let lines = Lines::default();
    // While there is only one subscriber, a thread that has none may reach the log line first, and turns it off for all
    // threads.
    let _second = tracing::Dispatch::new(Lines::default());
    tracing::subscriber::with_default(lines.clone(), || {
        assert!(good.take(Resource::Scans, 1).is_none());
        assert!(!good.has_room(Resource::Scans));
    });
    let mut fields = lines.0.lock().unwrap().clone();
    fields.retain(|field| !field.starts_with("message="));
    assert_eq!(
        fields,
        ["bound=\"scans\"", "used=10", "limit=10", "rejections=1", "largest_holder=127.0.0.1", "held=9"],
        "one line for both"
    );
}

#[test]
fn log_lines_about_a_bound_are_at_least_a_minute_apart() {
    let admission = admission(|_| ());
    assert!(admission.warns_at(Resource::Tails, 5));
    assert!(!admission.warns_at(Resource::Tails, 60_004));
    assert!(admission.warns_at(Resource::Scans, 6), "each bound has its own lines");
    assert!(admission.warns_at(Resource::Tails, 60_005));
}
