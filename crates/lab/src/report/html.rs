//! Reports as one HTML page that explains itself: a summary in words, the checks, plots, tables, the whole
//! configuration, the meanings of words, and the report's data as JSON. The page loads no other file and runs no
//! script.
//!
//! Owns: the page, and the division of wide tables into narrower ones. Does not own: the drawings (`plots`), the
//! meanings of words (`words`), or the list of several reports (`index`).
//!
//! The page suits a phone, a printer and a dark screen. On a phone it shows the narrow drawings of the plots. No column
//! is lost at the right edge: a table of few rows with many columns gets its rows and columns exchanged, and one of
//! many rows is cut into several tables. A table that is still too wide scrolls within its own box.

use std::{borrow::Cow, fmt::Write as _};

use super::{
    Cell, Check, Plot, PlotKind, Report, Table, Verdict, derived, escape::escaped, over_time::over_time, plots::style,
    words,
};
use crate::embedded;

/// Maximum number of columns of a table that fit side by side on a page 1,120 px wide.
const MAX_COLUMNS: usize = 10;
/// Number of columns with figures in each of the narrower tables into which a wide table is cut.
const COLUMNS_OF_PART: usize = 7;
/// Maximum number of rows of a table with too many columns that is written with rows and columns exchanged. A wide
/// table with more rows is cut into several tables.
const MAX_TURNED: usize = 4;

impl Report {
    /// Returns the report as one HTML page that loads no other file.
    pub fn to_html(&self) -> String {
        let body = self.body();
        let title = self.titled(&format!("thalweg bench {}", self.suite)).into_owned();
        let mut out = String::with_capacity(2 * body.len());
        out.push_str(&head(&title));
        out.push_str(&body);
        write_words(&mut out, &body);
        let _ = writeln!(
            out,
            "<h2>Data</h2>\n<p>This page contains the whole report as JSON. <code>thalweg bench compare A.html B.html</code> \
             compares the runs of two pages, if both have samples.</p>\n{}\n</body></html>",
            embedded::element(&self.to_json()),
        );
        out
    }

    fn body(&self) -> String {
        let mut out = String::with_capacity(64 * 1024);
        let _ = writeln!(out, "<h1>{}</h1>", escaped(&self.titled(&format!("thalweg bench {}", self.suite))));
        let _ =
            writeln!(out, "<p class=\"soft\">{}<br>{}</p>", escaped(&self.build_line()), escaped(&self.machine_line()));
        out.push_str("<section class=\"summary\">\n");
        let derived = if self.summary.is_empty() { derived::sentences(&self.tables) } else { Vec::new() };
        for sentence in self.summary.iter().chain(&derived) {
            let _ = writeln!(out, "<p>{}</p>", escaped(sentence));
        }
        let _ = writeln!(out, "<p>{}</p>\n</section>", self.verdict_in_words());
        if !self.checks.is_empty() {
            write_checks(&mut out, &self.checks);
        }
        for note in &self.notes {
            let _ = writeln!(out, "<p>Note: {}</p>", escaped(note));
        }
        let has_own = self.plots.iter().any(|plot| plot.kind == PlotKind::Figures);
        let derived = if has_own { Vec::new() } else { derived::plots_of(&self.tables) };
        let over_time = over_time(&self.samples);
        let mut plots: Vec<&Plot> = self.plots.iter().chain(&derived).chain(&over_time).collect();
        plots.sort_by_key(|plot| plot.kind);
        plots.into_iter().for_each(|plot| self.write_plot(&mut out, plot));
        for table in self.tables.iter().filter(|table| !table.rows.is_empty()) {
            let _ = writeln!(out, "<h2>{}</h2>", escaped(&self.titled(&table.title)));
            write_table(&mut out, table);
        }
        for spectrum in &self.spectra {
            let _ = writeln!(
                out,
                "<details><summary>{}</summary><pre>{}</pre></details>",
                escaped(&self.titled(&format!("Whole percentile spectrum: {}", spectrum.name))),
                escaped(&spectrum.to_text())
            );
        }
        self.write_configuration(&mut out);
        out
    }

    /// Returns a title, with the durability of the report's writes added. A title that already names a durability stays
    /// as it is.
    fn titled<'a>(&self, title: &'a str) -> Cow<'a, str> {
        match self.durability() {
            Some(level) if !title.to_lowercase().contains("durabilit") => Cow::Owned(format!("{title}, {level}")),
            _ => Cow::Borrowed(title),
        }
    }

    fn write_plot(&self, out: &mut String, plot: &Plot) {
        let _ = writeln!(
            out,
            "<h2>{}</h2>\n<figure>{}{}<figcaption>{}</figcaption></figure>",
            escaped(&self.titled(&plot.title)),
            // The plots are drawn by this crate with their texts escaped. The style hides either the wide or the narrow
            // drawing.
            plot.svg,
            plot.narrow,
            escaped(&plot.caption)
        );
    }

    fn verdict_in_words(&self) -> String {
        let count = |verdict| self.checks.iter().filter(|check| check.verdict == verdict).count();
        let (all, met, void) = (self.checks.len(), count(Verdict::Met), count(Verdict::Void));
        match self.verdict() {
            Verdict::Met if all == 0 => "The report checks nothing.".to_owned(),
            Verdict::Met => format!("<span class=\"met\">All {all} checks are met.</span>"),
            Verdict::Missed => format!("<span class=\"missed\">{met} of {all} checks are met.</span>"),
            Verdict::Void => format!(
                "<span class=\"void\">The figures are void:</span> {void} of {all} checks found no valid measurement. The \
                 reasons are below."
            ),
        }
    }

    fn write_configuration(&self, out: &mut String) {
        out.push_str("<h2>Configuration</h2>\n<dl>\n");
        let mut add = |name: &str, value: &str| {
            let _ = writeln!(out, "<dt>{}<dd>{}", escaped(name), escaped(value));
        };
        if !self.command.is_empty() {
            add("command", &self.command);
        }
        for condition in &self.conditions {
            add(condition.name, &condition.value);
        }
        add("machine", &self.machine_line());
        add("build", &self.build_line());
        add("whole run", &self.cost_line());
        out.push_str("</dl>\n");
    }
}

/// Returns the start of a page with this title, up to its body.
pub(super) fn head(title: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{}</title>\n<style>\n:root{{{}}}\n\
         @media screen and (prefers-color-scheme:dark){{:root{{{}}}}}\n{}{}\n</style></head><body>\n",
        escaped(title),
        style::variables(&style::LIGHT),
        style::variables(&style::DARK),
        include_str!("style.css"),
        style::rules(),
    )
}

fn write_checks(out: &mut String, checks: &[Check]) {
    out.push_str(
        "<h2>Checks</h2>\n<div class=\"wide\"><table><thead><tr><th>figure<th>required<th>measured<th>verdict</tr></thead>\n",
    );
    for check in checks {
        let verdict = match check.verdict {
            Verdict::Met => "<td class=\"met\">met",
            Verdict::Missed => "<td class=\"missed\">missed",
            Verdict::Void => "<td class=\"void\">void",
        };
        let (what, required, measured) = (escaped(&check.what), escaped(&check.required), escaped(&check.measured));
        let _ = writeln!(out, "<tr><td>{what}<td>{required}<td>{measured}{verdict}</tr>");
    }
    out.push_str("</table></div>\n");
}

fn write_table(out: &mut String, table: &Table) {
    if table.columns.len() <= MAX_COLUMNS {
        let all: Vec<usize> = (0..table.columns.len()).collect();
        return write_columns(out, table, &all);
    }
    if table.rows.len() <= MAX_TURNED {
        return write_turned(out, table);
    }
    // The first columns with text identify a row, so each part of the table repeats them.
    let is_text = |column: &usize| table.rows.iter().all(|row| matches!(row[*column], Cell::Text(_)));
    let keys: Vec<usize> = (0..table.columns.len()).take_while(is_text).take(3).collect();
    let figures: Vec<usize> = (keys.len()..table.columns.len()).collect();
    for part in figures.chunks(COLUMNS_OF_PART) {
        write_columns(out, table, &[&*keys, part].concat());
    }
}

fn write_columns(out: &mut String, table: &Table, columns: &[usize]) {
    out.push_str("<div class=\"wide\"><table><thead><tr>");
    for &column in columns {
        let is_figure = table.rows.iter().any(|row| !matches!(row[column], Cell::Text(_)));
        let _ = write!(out, "<th{}>{}", class(is_figure), escaped(table.columns[column]));
    }
    out.push_str("</tr></thead>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        columns.iter().for_each(|column| write_cell(out, &row[*column]));
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

/// Writes a table with rows and columns exchanged: each column of the table becomes a line, and the first column
/// becomes the heading.
fn write_turned(out: &mut String, table: &Table) {
    let _ = write!(out, "<div class=\"wide\"><table><thead><tr><th>{}", escaped(table.columns[0]));
    for row in &table.rows {
        let _ = write!(out, "<th class=\"figure\">{}", escaped(&row[0].text()));
    }
    out.push_str("</tr></thead>\n");
    for (column, name) in table.columns.iter().enumerate().skip(1) {
        let _ = write!(out, "<tr><td>{}", escaped(name));
        for row in &table.rows {
            let _ = write!(out, "<td class=\"figure\">{}", escaped(&row[column].text()));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

fn write_cell(out: &mut String, cell: &Cell) {
    let _ = write!(out, "<td{}>{}", class(!matches!(cell, Cell::Text(_))), escaped(&cell.text()));
}

fn class(is_figure: bool) -> &'static str {
    if is_figure { " class=\"figure\"" } else { "" }
}

fn write_words(out: &mut String, body: &str) {
    let mut words = words::words_in(body).peekable();
    if words.peek().is_some() {
        out.push_str("<h2>Words</h2>\n<dl>\n");
        for (word, meaning) in words {
            let _ = writeln!(out, "<dt>{}<dd>{}", escaped(&word), escaped(meaning));
        }
        out.push_str("</dl>\n");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        report::cells,
        samples::{Better, Role, Run, Samples},
    };

    fn sample() -> Report {
        let mut report = Report::begin("log", Path::new("."));
        report.condition("durability", "disk: synced before the reply");
        report.summary.push("Half of <all> requests took 3 µs.".to_owned());
        let mut table = Table::new("appends < 1 MiB & more");
        table.row(cells! {
            "batch" => "10 \"x\"", "rate/s" => 12_345.6, "p99 µs" => 7.0,
        });
        report.tables.push(table);
        report.checks.push(Check::at_least("rate", 0.8, 0.85, " ×"));
        let plot = Plot {
            name: "p".to_owned(),
            title: "a plot".to_owned(),
            caption: "how to read it".to_owned(),
            svg: "<svg></svg>".to_owned(),
            narrow: "<svg class=\"narrow\"></svg>".to_owned(),
            kind: PlotKind::Figures,
        };
        report.plots.push(plot);
        report
    }

    #[test]
    fn the_page_says_what_the_text_says_and_loads_nothing() {
        let html = sample().to_html();
        for part in [
            "<title>thalweg bench log, durability disk</title>",
            "Half of &lt;all&gt; requests",
            "0 of 1 checks are met",
            "appends &lt; 1 MiB &amp; more, durability disk",
            "10 &quot;x&quot;",
            "12,346",
            "missed",
            "<svg></svg><svg class=\"narrow\"></svg>",
            "svg.plot{display:none}svg.narrow{display:block}",
            "a plot, durability disk",
            "how to read it",
            "<dt>p99<dd>the time that",
            "screen and (prefers-color-scheme:dark)",
            "@media print",
            "name=\"viewport\"",
            "<dt>build<dd>",
        ] {
            assert!(html.contains(part), "{part} in\n{html}");
        }
        for elsewhere in ["src=", "href=", "http://", "https://", "url(", "@import"] {
            assert!(!html.contains(elsewhere), "{elsewhere} in\n{html}");
        }
        assert_eq!(html.matches("<script").count(), 1, "only the data");
    }

    #[test]
    fn the_data_is_read_back_whatever_it_contains() {
        let mut report = sample();
        report.notes.push("a </script> tag, and <script type=\"application/json\" id=\"data\">".to_owned());
        let page = report.to_html();
        let data: serde_json::Value = serde_json::from_str(embedded::json_of(&page).unwrap()).unwrap();
        assert_eq!(data, serde_json::from_str::<serde_json::Value>(&report.to_json()).unwrap());
        assert_eq!(embedded::json_of("<!DOCTYPE html>"), None);
    }

    #[test]
    fn no_column_is_lost_at_the_edge() {
        let columns = ["scenario", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"];
        let page = |rows: usize| {
            let mut table = Table::new("wide");
            for row in 0..rows {
                let cell = |(at, name): (usize, &&'static str)| {
                    (*name, if at == 0 { Cell::from(format!("s{row}")) } else { Cell::from(at) })
                };
                table.row(columns.iter().enumerate().map(cell).collect());
            }
            let mut out = String::new();
            write_table(&mut out, &table);
            out
        };
        let (turned, cut) = (page(2), page(5));
        assert!(turned.contains("<th>scenario<th class=\"figure\">s0<th class=\"figure\">s1</tr>"), "{turned}");
        assert!(turned.contains("<tr><td>k<td class=\"figure\">11<td class=\"figure\">11</tr>"), "{turned}");
        assert_eq!((cut.matches("<table>").count(), cut.matches("<th>scenario").count()), (2, 2), "{cut}");
        assert!(
            columns[1..].iter().all(|name| cut.matches(&format!("<th class=\"figure\">{name}<")).count() == 1),
            "{cut}"
        );
    }

    #[test]
    fn whole_spectra_are_in_the_page_the_text_and_the_data() {
        let mut report = sample();
        let mut times = crate::latency::Latencies::default();
        (1..1000).for_each(|number| times.record_nanos(number * 1000));
        report.spectra.extend(crate::Spectrum::of("put <1>", &times));
        let (html, text) = (report.to_html(), report.to_text());
        assert!(
            html.contains("<summary>Whole percentile spectrum: put &lt;1&gt;, durability disk</summary><pre>"),
            "{html}"
        );
        assert!(html.contains("1/(1-Percentile)") && text.contains("  Detailed Percentile spectrum:"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        let spectrum = &json["spectra"][0];
        assert_eq!((spectrum["count"].as_u64(), spectrum["lines"][0]["percentile"].as_f64()), (Some(999), Some(0.0)));
        assert!(spectrum["histogram"].as_str().is_some_and(|base64| base64.starts_with("HISTEw")), "{spectrum}");
        report.spectra = vec![report.spectra[0].clone(); 9];
        assert!(report.to_text().contains("9 whole percentile spectra"));
    }

    #[test]
    fn samples_become_plots_over_time() {
        let mut report = sample();
        report.samples.push(Samples {
            scenario: "put".to_owned(),
            durability: "disk".to_owned(),
            figure: "p99 µs".to_owned(),
            better: Better::Lower,
            role: Role::Deciding,
            window_seconds: 0.25,
            runs: vec![Run { whole: Some(3.0), windows: vec![Some(2.0), None, Some(4.0)], is_void: false }],
        });
        assert!(report.to_html().contains("<h2>p99 µs over time, durability disk: put</h2>"));
    }
}
