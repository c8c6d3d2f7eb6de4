//! The JSON form of a report, which the report's HTML page contains: writing it into the page, and finding it there.

/// Start tag of the HTML element that contains the JSON form of a report.
const BEGIN: &str = "<script type=\"application/json\" id=\"data\">";
const END: &str = "</script>";

/// Returns an HTML element that contains `json` and that browsers do not execute.
pub(crate) fn element(json: &str) -> String {
    // In JSON, `<` occurs only in strings. With it escaped, no text can end the element.
    format!("{BEGIN}{}{END}", json.replace('<', "\\u003c"))
}

/// Returns the JSON that a page contains; `None` if the text is not a page of a report.
pub(crate) fn json_of(page: &str) -> Option<&str> {
    let (_, data) = page.rsplit_once(BEGIN)?;
    data.split_once(END).map(|(json, _)| json)
}
