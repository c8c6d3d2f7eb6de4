use super::*;
use crate::{Quiet, options::parsed};

fn options(flags: &str) -> LogOptions {
    parsed(flags.split_whitespace()).unwrap()
}

#[test]
fn a_tiny_run_fills_every_table_and_check() {
    let flags = "--processes 1,3 --batches 1,4 --payload 64 --time 3ms --rounds 1 --warm-mib 0";
    let report = run(&options(flags), &mut Quiet).unwrap();
    let rows: Vec<usize> = report.tables.iter().map(|table| table.rows.len()).collect();
    assert_eq!(rows, [4 * 2, 4 * 4, 6], "{}", report.to_text());
    assert_eq!(report.checks.len(), 8);
    let text = report.to_text();
    for part in ["interval", "appends of probe", "p99 in median fdatasyncs", "fsyncs"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(report.cost.fsyncs.unwrap() > 0);
}

#[test]
fn options_out_of_range_are_named() {
    for (flags, part) in [
        ("--rounds 0", "--rounds"),
        ("--processes 0", "--processes"),
        ("--batches 0", "--batches"),
        ("--payload 9999999", "--batches"),
    ] {
        let error = run(&options(flags), &mut Quiet).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
