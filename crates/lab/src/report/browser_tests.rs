//! Tests of reports in a real browser. They are skipped if no Chromium is installed.

use std::path::Path;

use super::{
    Check, Report, Table, browser, cells,
    chromium::browser,
    plots::{self, Axis, Bar, Part},
    skip::skip,
};
use crate::{
    Scratch,
    profile::Stacks,
    samples::{Better, Role, Run, Samples},
};

/// Width of a phone and of a small laptop, in CSS pixels.
const WIDTHS: [u64; 2] = [390, 1280];

/// Returns a report with every kind of content, with long words and many columns.
fn report() -> Report {
    let mut report = Report::begin("http", Path::new("."));
    report.condition("durability", "disk: synced before the reply");
    report.condition("target", format!("http://{}:7070", "a-very-long-host-name.".repeat(8)));
    report.summary.push("put (64 connections, durability disk): at 5,000 requests/s p99 was 2.00 ms.".to_owned());
    let columns =
        ["scenario", "requests/s", "± MAD", "p50 µs", "p90 µs", "p95 µs", "p99 µs", "p99.9 µs", "max µs", "lag"];
    for rows in [2, 8] {
        let mut table = Table::new(format!("figures of {rows} scenarios with a long title that goes on and on"));
        for row in 0..rows {
            let name = format!("put 1 KB at {row}0,000/s with a name that is long, interval");
            let figures = columns[1..].iter().map(|column| (*column, 123_456.7.into()));
            table.row(
                std::iter::once((columns[0], name.into())).chain(figures).chain([("verdict", "good".into())]).collect(),
            );
        }
        report.tables.push(table);
    }
    let mut functions = Table::new("functions");
    functions.row(cells! { "function" => "thalweg_log::commit::".repeat(12), "alone %" => 12.0 });
    report.tables.push(functions);
    report.checks.push(Check::at_least(format!("rate of {}", "a_long_name_".repeat(12)), 0.8, 0.85, " ×"));
    let line = |name: &str| (name.to_owned(), (1..50).map(|at| (f64::from(at), f64::from(at * at))).collect());
    let axes = [Axis::percentiles(), Axis::log("µs from due to answered")];
    report.plots.push(plots::lines("spectrum", "response times", "how to read it", &axes, &[line("put"), line("get")]));
    let bar =
        |value: f64| Bar { label: "put".to_owned(), store: String::new(), is_pale: false, value, interval: (1.0, 9.0) };
    report.plots.push(plots::rows("rates", "rates", "", &Axis::linear("requests/s"), &[bar(3.0), bar(8.0)]));
    let part = |name: &str, value| Part { name: name.to_owned(), value };
    let parts = vec![
        part("queue: until a thread takes the command", 10.0),
        part("fsync", 95.0),
        part("apply: to the state", 3.0),
    ];
    report.plots.push(plots::stacked("stages", "stages", "", &Axis::linear("µs"), &[("put".to_owned(), parts)]));
    let mut stacks = Stacks::default();
    for depth in 1..40 {
        let frames: Vec<String> = (0..depth).map(|frame| format!("thalweg_log::module::function_{frame}")).collect();
        stacks.add(std::iter::once("worker").chain(frames.iter().map(|frame| &**frame)), 1.0);
    }
    report.plots.push(plots::flame("flame-cpu", "cpu profile: put", "how to read it", &stacks));
    report.samples.push(Samples {
        scenario: "put".to_owned(),
        durability: "disk".to_owned(),
        figure: "p99 µs".to_owned(),
        better: Better::Lower,
        role: Role::Deciding,
        window_seconds: 0.25,
        runs: vec![Run { whole: Some(3.0), windows: vec![Some(2.0), None, Some(4.0)], is_void: false }],
    });
    report
}

#[test]
fn a_page_is_clean_and_fits_a_phone_and_a_laptop() {
    let Some(chromium) = browser() else {
        return skip("a_page_is_clean_and_fits_a_phone_and_a_laptop", "no Chromium is installed");
    };
    let scratch = Scratch::below(None).unwrap();
    for seen in browser::open(&chromium, scratch.path(), &report().to_html(), &WIDTHS) {
        assert!(seen.content <= seen.viewport, "the page scrolls sideways: {seen:?}");
        assert!(seen.requests.is_empty() && seen.console.is_empty(), "{seen:?}");
        assert_eq!(seen.drawings, 5, "one drawing of each plot: {seen:?}");
    }
}

/// Opens a page that has every fault. The observations must show all of them.
#[test]
fn a_bad_page_is_noticed() {
    let Some(chromium) = browser() else {
        return skip("a_bad_page_is_noticed", "no Chromium is installed");
    };
    let scratch = Scratch::below(None).unwrap();
    let page = "<!doctype html><body><div style=\"width:3000px\">wide</div><img src=\"http://127.0.0.1:9/image.png\">\
                <script>console.error('a fault')</script></body>";
    let seen = &browser::open(&chromium, scratch.path(), page, &[390])[0];
    assert_eq!((seen.viewport, seen.drawings), (390, 0), "{seen:?}");
    assert!(seen.content >= 3000 && seen.requests.len() == 1, "{seen:?}");
    assert!(seen.console.iter().any(|line| line.contains("a fault")), "{seen:?}");
}
