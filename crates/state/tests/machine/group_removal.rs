//! Removal of many rows of consumer groups in parts: what readers see between the parts, and the rows at the end.

use thalweg_state::machine::MachineOptions;
use thalweg_types::{
    GroupId, Offset, SpaceTime, StreamId,
    command::{
        self, Outcome, StreamConfig,
        groups::{GroupConfig, GroupOutcome, Settlement, encode_ack, encode_delete_group, encode_reclaim_group},
    },
    limits::MAX_GROUP_PENDING,
};

use crate::{
    groups::{GROUP, STREAM, append, fetch_command, fetched, of},
    random::node::{Node, on_a_map},
    support::command,
};

/// More attempts than one command removes.
const MANY: u32 = 12_000;
/// Rows that one command removes at most.
const EAGER: u32 = 10_000;

fn create(stream: StreamId, name: &str) -> Vec<u8> {
    let config = GroupConfig { max_pending: MAX_GROUP_PENDING, ..GroupConfig::default() };
    command(|out| command::groups::encode_create_group(out, stream, name, Some(Offset(0)), &config).unwrap())
}

fn apply_all(node: &mut Node, time: u64, commands: &[Vec<u8>]) -> Vec<Outcome> {
    commands.iter().map(|command| node.apply(time, &[command]).remove(0)).collect()
}

/// A node with a stream of 13,000 records, and a group that holds the first 12,000 of them, each in an attempt of its
/// own.
fn holding() -> Node {
    let mut node = Node::new(on_a_map(), MachineOptions::default());
    let streams = ["jobs", "others"]
        .map(|name| command(|out| command::encode_create_stream(out, name, &StreamConfig::default()).unwrap()));
    apply_all(&mut node, 1, &streams);
    (0..13).for_each(|_| _ = node.apply(1, &[&append(STREAM, 1_000)]));
    apply_all(&mut node, 1, &[create(STREAM, "g")]);
    let fetch = fetch_command(1, "m");
    (0..MANY / 1_000).for_each(|_| _ = node.apply(2, &[&fetch[..]; 1_000]));
    node
}

fn reclaim(group: u32, max: u32) -> Vec<u8> {
    command(|out| encode_reclaim_group(out, GroupId(group), max))
}

fn reclaimed(entries: u32, more: bool) -> Outcome {
    Outcome::Reclaimed { entries, more }
}

fn no_group(id: u32) -> Outcome {
    Outcome::Group(GroupOutcome::NoSuchGroup(GroupId(id)))
}

/// Number of rows of groups: heads, members and attempts.
fn rows(node: &Node) -> [usize; 3] {
    let rows = node.rows();
    [0x0e, 0x0f, 0x14].map(|tag| rows.keys().filter(|key| key[0] == tag && key.len() > 1).count())
}

fn pending(node: &Node) -> u64 {
    node.machine().group(GROUP, SpaceTime(9)).unwrap().unwrap().pending
}

#[test]
fn a_large_group_is_gone_at_once_and_its_rows_go_in_parts() {
    let mut node = holding();
    let (delete, ack) = (
        command(|out| encode_delete_group(out, GROUP)),
        command(|out| encode_ack(out, GROUP, &[Settlement::all(2.into())]).unwrap()),
    );
    assert_eq!(node.apply(3, &[&delete]), [Outcome::Group(GroupOutcome::Done)], "a delete is not rejected");
    assert_eq!(rows(&node), [1, 1, MANY as usize]);
    for reopened in [false, true] {
        if reopened {
            node = node.copy();
        }
        assert_eq!(node.machine().groups(None).unwrap(), []);
        assert_eq!(node.machine().group_id(STREAM, "g").unwrap(), None);
        assert_eq!(node.machine().group(GROUP, SpaceTime(3)).unwrap(), None);
        assert_eq!(node.machine().groups_to_reclaim(9).unwrap(), [GROUP]);
    }
    let outcomes = apply_all(&mut node, 3, &[delete, ack, fetch_command(1, "m"), create(STREAM, "g")]);
    let created = Outcome::Group(GroupOutcome::Created { id: GroupId(2), created: true });
    assert_eq!(outcomes, [no_group(1), no_group(1), no_group(1), created], "the name is free");
    assert_eq!(node.apply(4, &[&reclaim(1, 5_000)]), [reclaimed(5_000, true)]);
    node = node.copy();
    assert_eq!(rows(&node), [2, 1, 7_000]);
    assert_eq!(node.apply(4, &[&reclaim(1, 7_000)]), [reclaimed(7_000, true)], "its member is left");
    assert_eq!(node.apply(4, &[&reclaim(1, u32::MAX), &reclaim(1, 1)]), [reclaimed(1, false), no_group(1)]);
    assert_eq!((rows(&node), node.machine().groups_to_reclaim(9).unwrap()), ([1, 0, 0], Vec::new()));
}

#[test]
fn entries_do_not_decide_which_rows_of_a_group_are_left() {
    let commands = [
        fetch_command(1, "another"),
        command(|out| encode_ack(out, GROUP, &[Settlement::all(2.into())]).unwrap()),
        command(|out| encode_delete_group(out, GROUP)),
        reclaim(1, 100),
        create(STREAM, "g"),
    ];
    let nodes = [false, true].map(|together| {
        let mut node = holding();
        let outcomes = match together {
            true => node.apply(3, &commands.each_ref().map(|command| &command[..])),
            false => apply_all(&mut node, 3, &commands),
        };
        (outcomes, node.rows(), rows(&node))
    });
    assert_eq!(nodes[0], nodes[1]);
    assert_eq!(nodes[0].2, [2, 2, MANY as usize - 100]);
}

#[test]
fn the_groups_of_a_deleted_stream_share_what_one_command_removes() {
    let mut node = holding();
    apply_all(&mut node, 2, &[create(STREAM, "a"), create(StreamId(2), "stays")]);
    let fetch = command(|out| command::groups::encode_fetch(out, GroupId(2), 1, Offset(0), &[], "m").unwrap());
    (0..5).for_each(|_| _ = node.apply(2, &[&fetch[..]; 1_000]));
    assert_eq!(rows(&node), [3, 2, MANY as usize + 5_000]);
    let delete = command(|out| command::encode_delete_stream(out, STREAM));
    assert_eq!(node.apply(3, &[&delete]), [Outcome::Done]);
    assert_eq!(rows(&node), [2, 1, MANY as usize], "the smaller one is removed with its head");
    assert_eq!(node.machine().groups(None).unwrap(), [GroupId(3)]);
    node = node.copy();
    let outcomes = apply_all(&mut node, 4, &[reclaim(1, EAGER + 1), reclaim(1, EAGER)]);
    assert_eq!(outcomes, [reclaimed(EAGER, true), reclaimed(MANY + 1 - EAGER, false)]);
    assert_eq!(rows(&node), [1, 0, 0]);
}

#[test]
fn trimmed_records_of_a_large_group_go_in_parts() {
    let mut node = holding();
    let trim = |before| command(|out| command::encode_trim_stream(out, STREAM, Offset(before)));
    assert_eq!(node.apply(3, &[&trim(100)]), [Outcome::Done]);
    assert_eq!((pending(&node), node.machine().groups_to_reclaim(9).unwrap()), (11_900, Vec::new()));
    assert_eq!(node.apply(3, &[&trim(11_500)]), [Outcome::Done]);
    assert_eq!(pending(&node), 1_900, "10,000 are removed at once");
    node = node.copy();
    assert_eq!(node.machine().groups_to_reclaim(9).unwrap(), [GROUP]);
    assert_eq!(node.machine().group(GROUP, SpaceTime(3)).unwrap().unwrap().floor, Offset(11_500));
    let outcomes = apply_all(&mut node, 4, &[reclaim(1, 1_000), reclaim(1, 400), reclaim(1, 1_000)]);
    assert_eq!(outcomes, [reclaimed(1_000, true), reclaimed(400, false), reclaimed(0, false)]);
    assert_eq!((pending(&node), rows(&node)), (500, [1, 1, 500]));
    assert_eq!(node.machine().groups_to_reclaim(9).unwrap(), []);
    let next = fetched(&node.apply(5, &[&fetch_command(2, "m")])[0]);
    assert_eq!(of(&next), [(12_000, 2, 1)]);
}

#[test]
fn a_group_that_still_has_rows_counts_towards_the_maximum() {
    let mut node = holding();
    let names: Vec<_> =
        (1..thalweg_types::limits::MAX_GROUPS).map(|number| create(STREAM, &format!("{number}"))).collect();
    for names in names.chunks(1_000) {
        node.apply(3, &names.iter().map(|name| &name[..]).collect::<Vec<_>>());
    }
    let delete = command(|out| encode_delete_group(out, GROUP));
    let full = |outcome: &Outcome| matches!(outcome, Outcome::TooMany { what: "consumer groups", .. });
    let outcomes = apply_all(&mut node, 4, &[delete, create(STREAM, "more"), reclaim(1, EAGER)]);
    assert!(full(&outcomes[1]), "{:?}", outcomes[1]);
    let outcomes = apply_all(&mut node, 5, &[reclaim(1, EAGER), create(STREAM, "more")]);
    assert!(!full(&outcomes[1]), "{:?}", outcomes[1]);
}
