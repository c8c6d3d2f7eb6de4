//! A page with links to the reports of several runs.

use std::fmt::Write as _;

use super::escape::escaped;

/// One benchmark run, as the page with links to reports lists it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Heading under which the page lists the run. Entries of one section must be adjacent.
    pub section: String,
    /// Name of the run on the page.
    pub name: String,
    /// Command that repeats the run.
    pub command: String,
    /// Outcome of the run in a few words, such as "all checks met".
    pub outcome: String,
    /// True if the outcome is good. It determines the colour of the outcome.
    pub is_good: bool,
    /// Main result of the run in one sentence.
    pub said: String,
    /// Names of the run's files. They are in the directory of the page.
    pub links: Vec<String>,
}

/// Returns the page with these entries. It loads no other file, and links only to files in its own directory.
pub fn index_page(title: &str, entries: &[Entry]) -> String {
    let mut out = super::html::head(title);
    let _ = writeln!(out, "<h1>{}</h1>", escaped(title));
    let mut section = "";
    for entry in entries {
        if entry.section != section {
            section = &entry.section;
            let _ = writeln!(out, "<h2>{}</h2>", escaped(section));
        }
        let class = if entry.is_good { "met" } else { "missed" };
        let links: Vec<String> =
            entry.links.iter().map(|file| format!("<a href=\"{0}\">{0}</a>", escaped(file))).collect();
        let _ = writeln!(
            out,
            "<p><b>{}</b> <span class=\"{class}\">{}</span><br><code>{}</code><br>{}<br>{}</p>",
            escaped(&entry.name),
            escaped(&entry.outcome),
            escaped(&entry.command),
            escaped(&entry.said),
            links.join(" ")
        );
    }
    out.push_str("</body></html>\n");
    out
}
