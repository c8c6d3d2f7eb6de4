//! Reports as one HTML page: the same words and figures as the text form, and the plots. The page loads nothing from
//! elsewhere.

use std::fmt::Write as _;

use super::{Cell, Report, Table, Verdict};

const STYLE: &str = "body{font:14px/1.5 sans-serif;margin:2em auto;max-width:1100px;padding:0 1em;color:#222}\
pre{white-space:pre-wrap;background:#f4f4f4;padding:1em}\
div.wide{overflow-x:auto}\
table{border-collapse:collapse;margin:.5em 0 1.5em}\
th,td{border-bottom:1px solid #ddd;padding:.2em .6em;text-align:left;vertical-align:top}\
td.figure{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\
td.missed{color:#a1232b;font-weight:bold}td.void{color:#8a5a00;font-weight:bold}\
svg{max-width:100%;height:auto}";

impl Report {
    /// Returns the report as one HTML page that includes the plots and loads nothing from elsewhere.
    pub fn to_html(&self) -> String {
        let mut out = String::with_capacity(64 * 1024);
        let title = format!("thalweg bench {}", self.suite);
        let _ = writeln!(
            out,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style>\
             </head><body>\n<h1>{title}</h1>"
        );
        let mut head = String::new();
        self.write_head(&mut head);
        let _ = writeln!(out, "<pre>{}</pre>", escaped(&head));
        for sentence in &self.summary {
            let _ = writeln!(out, "<p>{}</p>", escaped(sentence));
        }
        if !self.checks.is_empty() {
            write_checks(&mut out, self);
        }
        for note in &self.notes {
            let _ = writeln!(out, "<p>Note: {}</p>", escaped(note));
        }
        for plot in &self.plots {
            // Drawn by ourselves, with their words escaped.
            let _ = writeln!(out, "<h2>{}</h2>\n{}", escaped(&plot.title), plot.svg);
        }
        for table in &self.tables {
            write_table(&mut out, table);
        }
        out.push_str("</body></html>\n");
        out
    }
}

fn write_checks(out: &mut String, report: &Report) {
    out.push_str("<h2>checks</h2>\n<table><tr><th>figure<th>required<th>measured<th>verdict</tr>\n");
    for check in &report.checks {
        let verdict = match check.verdict {
            Verdict::Met => "<td>met",
            Verdict::Missed => "<td class=\"missed\">missed",
            Verdict::Void => "<td class=\"void\">void",
        };
        let (what, required, measured) = (escaped(&check.what), escaped(&check.required), escaped(&check.measured));
        let _ = writeln!(out, "<tr><td>{what}<td>{required}<td>{measured}{verdict}</tr>");
    }
    out.push_str("</table>\n");
}

fn write_table(out: &mut String, table: &Table) {
    let _ = write!(out, "<h2>{}</h2>\n<div class=\"wide\"><table><tr>", escaped(&table.title));
    for column in &table.columns {
        let _ = write!(out, "<th>{}", escaped(column));
    }
    out.push_str("</tr>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for cell in row {
            let class = if matches!(cell, Cell::Text(_)) { "" } else { " class=\"figure\"" };
            let _ = write!(out, "<td{class}>{}", escaped(&cell.text()));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

/// Returns the text with HTML's special characters escaped.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::report::{Check, Plot, cells};

    #[test]
    fn the_page_says_what_the_text_says_and_loads_nothing() {
        let mut report = Report::begin("log", Path::new("."));
        report.condition("durability", "disk");
        let mut table = Table::new("appends < 1 MiB & more");
        table.row(cells! {
            "batch" => "10 \"x\"", "rate/s" => 12_345.6,
        });
        report.tables.push(table);
        report.checks.push(Check::at_least("rate", 0.8, 0.85, " ×"));
        report.plots.push(Plot { name: "p".to_owned(), title: "a plot".to_owned(), svg: "<svg></svg>".to_owned() });
        let html = report.to_html();
        let parts =
            ["durability: disk", "appends &lt; 1 MiB &amp; more", "10 &quot;x&quot;", "12,346", "missed", "<svg>"];
        for part in parts {
            assert!(html.contains(part), "{part} in\n{html}");
        }
        for elsewhere in ["src=", "href=", "http://", "https://", "url("] {
            assert!(!html.contains(elsewhere), "{elsewhere} in\n{html}");
        }
    }
}
