//! Rows that a scan over HTTP returns: one JSON object on each line, and a last line with the number of rows.

use serde::{Deserialize, de::IgnoredAny};

/// Function that checks the key and the value of a row.
pub type RowCheck<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), String> + 'a;

/// Returns the start of a text, as it is shown in messages about faults.
pub fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned()
}

/// A line of a scan's reply: a pair of key and value, or the last line with the count. The benchmark writes only text,
/// so the fields for binary keys and values are not read.
#[derive(Debug, Deserialize)]
struct Line {
    key: Option<String>,
    value: Option<String>,
    count: Option<u64>,
    /// Error that made the server end the scan before its last row; `None` without an error.
    error: Option<IgnoredAny>,
}

/// Calls `check` with the key and the value of each row, in order. Returns the number of rows. If the rows are wrong,
/// returns a description of the fault.
pub(super) fn check(body: &[u8], check: &mut RowCheck<'_>) -> Result<u64, String> {
    let mut rows = 0;
    let mut lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    while let Some(line) = lines.next() {
        let wrong = || format!("no row and no end of rows: {}", shown(line));
        let parsed: Line = serde_json::from_slice(line).map_err(|_| wrong())?;
        match parsed {
            Line { key: Some(key), value: Some(value), .. } => check(key.as_bytes(), value.as_bytes())?,
            Line { key: None, error: None, count: Some(count), .. } if count == rows && lines.next().is_none() => {
                return Ok(rows);
            }
            _ => return Err(wrong()),
        }
        rows += 1;
    }
    Err(format!("the end of the rows is missing after {rows} rows"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(body: &str) -> Result<Vec<String>, String> {
        let mut seen = Vec::new();
        let rows = check(body.as_bytes(), &mut |key, value| {
            seen.push(format!("{}={}", shown(key), shown(value)));
            Ok(())
        })?;
        assert_eq!(rows, seen.len() as u64);
        Ok(seen)
    }

    #[test]
    fn rows_end_with_their_number() {
        let (a, b) = (r#"{"key":"a","value":"1","revision":3}"#, r#"{"key":"b","value":"\u0032","revision":4}"#);
        let end = r#"{"count":2,"durability":"disk","revision":4,"cursor":"AQ"}"#;
        assert_eq!(checked(&format!("{a}\n{b}\n{end}\n")).unwrap(), ["a=1", "b=2"]);
        assert_eq!(checked("{\"count\":0}\n").unwrap(), Vec::<String>::new());
        for (wrong, part) in [
            (format!("{a}\n{b}\n"), "missing after 2 rows"),
            (format!("{a}\n{end}\n"), "no row and no end"),
            (format!("{a}\n{b}\n{end}\n{a}\n"), "no row and no end"),
            (format!("{a}\n{{\"error\":{{}},\"count\":1}}\n"), "no row and no end"),
            (r#"{"key_base64":"/w==","value":"2","revision":4}"#.to_owned(), "no row and no end"),
            ("hello".to_owned(), "hello"),
        ] {
            let error = checked(&wrong).unwrap_err();
            assert!(error.contains(part), "{wrong}: {error}");
        }
    }
}
