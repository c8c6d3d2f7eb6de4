//! Escaping of text for HTML and SVG.

/// Returns the text with HTML's special characters escaped.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
