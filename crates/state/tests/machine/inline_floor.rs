//! Tests of the inline floor across reopens with other options, on old rows, and after a restore.

use thalweg_state::{machine::MachineOptions, portable};
use thalweg_store::{Backend, WriteBatch};
use thalweg_types::{
    KeyspaceId,
    command::{self, KeyspaceConfig},
};

use crate::support::{Bench, command};

fn bench(inline_value_bytes: usize) -> Bench {
    Bench::new(MachineOptions { inline_value_bytes })
}

fn reopened_with(bench: &mut Bench, inline_value_bytes: usize) -> usize {
    bench.options = MachineOptions { inline_value_bytes };
    bench.reopen();
    bench.machine.inline_floor()
}

/// Changes rows without the machine.
fn change(bench: &Bench, batch: &WriteBatch) {
    bench.backend.apply(batch, bench.machine.applied()).unwrap();
}

fn create(name: &str) -> Vec<u8> {
    command(|out| command::encode_create_keyspace(out, name, &KeyspaceConfig::default()).unwrap())
}

#[test]
fn the_lowest_option_of_all_openings_that_wrote_counts() {
    let mut bench = bench(4096);
    assert_eq!(bench.machine.inline_floor(), 4096);
    // No entry was applied yet, so no value can be in the log.
    assert_eq!(reopened_with(&mut bench, 8192), 8192);
    bench.run(1, &[create("a")]);
    assert_eq!(reopened_with(&mut bench, 256), 256);
    assert_eq!(reopened_with(&mut bench, 9000), 8192, "no entry was applied with the option 256");
    assert_eq!(reopened_with(&mut bench, 256), 256);
    bench.run(2, &[create("b")]);
    for raised in [300, 8192, 1 << 20] {
        assert_eq!(reopened_with(&mut bench, raised), 256);
        bench.run(3, &[command(|out| command::encode_put(out, KeyspaceId(1), b"k", &[7; 400]).unwrap())]);
    }
}

#[test]
fn rows_without_a_floor_are_of_a_node_that_may_have_left_any_value_in_its_log() {
    let mut bench = bench(4096);
    bench.run(1, &[create("a")]);
    let mut batch = WriteBatch::new();
    batch.delete(&[b"\x04"]);
    change(&bench, &batch);
    assert_eq!(reopened_with(&mut bench, 4096), 128);
    bench.run(2, &[create("b")]);
    assert_eq!(reopened_with(&mut bench, 4096), 128);
}

#[test]
fn a_restored_state_begins_without_values_in_entries() {
    let mut bench = bench(256);
    bench.run(1, &[create("a")]);
    let mut batch = WriteBatch::new();
    portable::begin(&mut batch, &bench.machine.applied(), b"");
    change(&bench, &batch);
    assert_eq!(reopened_with(&mut bench, 4096), 4096);
}
