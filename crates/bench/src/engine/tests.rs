use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Mutex, atomic::AtomicBool},
};

use super::*;
use crate::{Quiet, options::parsed};

fn options(flags: &str) -> EngineOptions {
    parsed(flags.split_whitespace()).unwrap()
}

/// A store in memory. A test can make it return wrong data.
#[derive(Default)]
struct Model {
    lies_in_ranges: bool,
    lies_in_gets: bool,
}

struct Map {
    map: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    lies_in_ranges: bool,
    lies_in_gets: AtomicBool,
}

impl Contender for Model {
    fn name(&self) -> &str {
        "model"
    }
    fn describe(&self) -> String {
        "a map".to_owned()
    }
    fn open(&self, dir: &Path, _: &StoreOptions) -> Result<Box<dyn KvSubject>, BenchError> {
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "stores begin empty");
        Ok(Box::new(Map {
            map: Mutex::default(),
            lies_in_ranges: self.lies_in_ranges,
            lies_in_gets: AtomicBool::new(self.lies_in_gets),
        }))
    }
}

impl KvSubject for Map {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        self.map.lock().unwrap().insert(key.to_vec(), value.to_vec());
        Ok(())
    }
    fn put_batch(&self, pairs: &[Pair<'_>]) -> Result<(), BenchError> {
        pairs.iter().try_for_each(|(key, value)| self.put(key, value))
    }
    fn delete(&self, key: &[u8]) -> Result<(), BenchError> {
        self.map.lock().unwrap().remove(key);
        Ok(())
    }
    fn get(&self, key: &[u8], expected: &[u8]) -> Result<LookupResult, BenchError> {
        let lies = self.lies_in_gets.swap(false, std::sync::atomic::Ordering::Relaxed);
        Ok(match self.map.lock().unwrap().get(key) {
            None => LookupResult::Missing,
            Some(value) if value == expected && !lies => LookupResult::Right,
            Some(_) => LookupResult::Wrong,
        })
    }
    fn range(&self, start: &[u8], end: &[u8], visit: &mut Visit<'_>) -> Result<(), BenchError> {
        for (key, value) in self.map.lock().unwrap().range(start.to_vec()..end.to_vec()) {
            let mut value = value.clone();
            if self.lies_in_ranges {
                value[0] ^= 1;
            }
            visit(key, &value);
        }
        Ok(())
    }
    fn flush(&self) -> Result<(), BenchError> {
        Ok(())
    }
    fn settle(&self) -> Result<(), BenchError> {
        Ok(())
    }
    fn tables(&self) -> Option<u64> {
        None
    }
    fn data_bytes(&self) -> Option<u64> {
        None
    }
    fn fsyncs(&self) -> Option<u64> {
        None
    }
}

const TINY: &str = "--scale 0.002 --rounds 1 --warm-mib 0 --cache-mib 8";

#[test]
fn a_tiny_full_run_of_the_engine_fills_every_table() {
    let report = run(&options(&format!("{TINY} --mode full")), &mut Quiet).unwrap();
    let text = report.to_text();
    for part in [
        "sequential write",
        "batch write",
        "range 500, flushed",
        "mixed 90/10",
        "miss, large",
        "reads after",
        "5 of 10 × 100 B deleted",
        "100 × 100 B in order",
        "compaction of everything, asked for",
        "stream append",
        "raw probe",
        "disk, 1 thread",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert_eq!(report.plots.len(), 2, "a plot for each level");
    assert!(report.plots[0].svg.contains("random read, flushed") && !report.plots[0].svg.contains("NaN"));
    assert!(
        report.summary.len() == 3 && report.summary[0].contains("operations/s by one thread"),
        "{:?}",
        report.summary
    );
    let rows: Vec<usize> = report.tables.iter().map(|table| table.rows.len()).collect();
    // Each of the two levels has a table of rates and a table of costs. The mixes run at one level only, so there is
    // one table of them.
    assert_eq!((&rows[..2], &rows[3..5]), (&[24, 24][..], &[7, 7][..]), "{text}");
    assert!(
        report.tables[2].title.ends_with("reads and writes of a mix apart") && (2..=4).contains(&rows[2]),
        "{text}"
    );
    assert_eq!(report.checks.len(), 10);
}

#[test]
fn contenders_are_compared_round_by_round() {
    let (own, model) = (Thalweg { backend: BackendKind::Lsm }, Model::default());
    let mut options = options(&format!("{TINY} --level interval --warmup-rounds 1"));
    options.rounds = 2;
    let (report, results) = run_all("peers", &options, &[&own, &model], &mut Quiet).unwrap();
    let row = results.find("random read, flushed", Level::Interval, "model").unwrap();
    assert_eq!(row.rounds.len(), 2, "the round that warms up is not counted");
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    let rows = json["tables"][0]["rows"].as_array().unwrap();
    assert_eq!(rows[0]["backend"], "thalweg");
    assert_eq!(rows[1]["backend"], "model");
    assert!(rows[0]["thalweg ÷ this"].is_null() && rows[1]["thalweg ÷ this"].is_number());
}

#[test]
fn a_store_that_lies_gets_no_figures() {
    for (model, part) in [
        (Model { lies_in_ranges: true, ..Model::default() }, "range of"),
        (Model { lies_in_gets: true, ..Model::default() }, "Wrong"),
    ] {
        let error = run_all("peers", &options(TINY), &[&model], &mut Quiet).unwrap_err().to_string();
        assert!(error.contains("wrong data") && error.contains(part), "{error}");
    }
}

#[test]
fn single_groups_can_be_chosen() {
    let report = run(&options(&format!("{TINY} --level interval --only stream")), &mut Quiet).unwrap();
    assert_eq!(report.tables.len(), 1, "{}", report.to_text());
}

#[test]
fn options_out_of_range_are_named() {
    assert!(run(&options("--scale 0"), &mut Quiet).unwrap_err().to_string().contains("--scale"));
    assert!(run(&options("--rounds 0"), &mut Quiet).unwrap_err().to_string().contains("--rounds"));
}
