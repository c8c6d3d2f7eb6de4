//! Metrics in the text format of OpenMetrics, as a server returns them at `/metrics`.
//!
//! Owns: parsing, sums over labels, and histograms. Invariant: no text makes the parser fail or panic. The parser
//! leaves out lines that it does not understand, because a newer server may send more than this version knows.

use std::collections::BTreeMap;

/// Prefix of the names of all metrics of a server.
const PREFIX: &str = "thalweg_";

/// One value of a metric, with its labels.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    labels: Vec<(String, String)>,
    pub value: f64,
}

impl Series {
    /// Returns the value of a label; empty if the series does not have it.
    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels.iter().find(|(label, _)| label == name).map_or("", |(_, value)| value)
    }
}

/// All metrics of one scrape, by name without the prefix `thalweg_`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Metrics(BTreeMap<String, Vec<Series>>);

impl Metrics {
    /// Parses the text that a server returns at `/metrics`.
    pub(crate) fn parse(text: &str) -> Self {
        let mut metrics = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if let Some((name, series)) = parse_line(line) {
                metrics.0.entry(name.strip_prefix(PREFIX).unwrap_or(name).to_owned()).or_default().push(series);
            }
        }
        metrics
    }

    /// Returns all series of a metric.
    pub(crate) fn series(&self, name: &str) -> &[Series] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns the sum over all series of a metric; `None` if the metric does not exist.
    pub(crate) fn sum(&self, name: &str) -> Option<f64> {
        self.sum_where(name, |_| true)
    }

    /// Returns the sum over the series of a metric for which `chosen` returns true; `None` if the metric does not
    /// exist. If the metric exists but has no such series, returns 0, because a server shows some series only after
    /// their first event.
    pub(crate) fn sum_where(&self, name: &str, chosen: impl Fn(&Series) -> bool) -> Option<f64> {
        let series = self.0.get(name)?;
        Some(series.iter().filter(|series| chosen(series)).map(|series| series.value).sum())
    }

    /// Returns the value of the metric `name` in the series whose label `label` is `value`; `None` if there is no such
    /// series.
    pub(crate) fn of(&self, name: &str, label: &str, value: &str) -> Option<f64> {
        self.series(name).iter().find(|series| series.label(label) == value).map(|series| series.value)
    }

    /// Returns the histogram of this metric, summed over the series for which `chosen` returns true. The histogram is
    /// empty if no series is chosen.
    pub(crate) fn histogram(&self, name: &str, chosen: impl Fn(&Series) -> bool) -> Histogram {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for series in self.series(&format!("{name}_bucket")).iter().filter(|series| chosen(series)) {
            let Ok(bound) = series.label("le").parse::<f64>() else { continue };
            match buckets.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, count)) => *count += series.value,
                None if bound.is_nan() => {}
                None => buckets.push((bound, series.value)),
            }
        }
        buckets.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        Histogram { buckets, sum: self.sum_where(&format!("{name}_sum"), chosen).unwrap_or(0.0) }
    }
}

/// A histogram with cumulative counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    /// Buckets of the histogram: the inclusive upper bound of each, and the number of values up to this bound.
    buckets: Vec<(f64, f64)>,
    sum: f64,
}

impl Histogram {
    /// Returns the histogram of the values that were added after `earlier`. If the counts have fallen, the server was
    /// restarted, so all values are new.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        if self.count() < earlier.count() {
            return self.clone();
        }
        let then =
            |bound: f64| earlier.buckets.iter().find(|(known, _)| *known == bound).map_or(0.0, |(_, count)| *count);
        let buckets = self.buckets.iter().map(|(bound, count)| (*bound, (count - then(*bound)).max(0.0))).collect();
        Self { buckets, sum: (self.sum - earlier.sum).max(0.0) }
    }

    /// Returns the number of values in the histogram.
    pub(crate) fn count(&self) -> f64 {
        self.buckets.last().map_or(0.0, |(_, count)| *count)
    }

    /// Returns the mean of the values in the histogram; `None` if it has none.
    pub(crate) fn mean(&self) -> Option<f64> {
        (self.count() > 0.0).then(|| self.sum / self.count())
    }

    /// Returns an upper bound of a quantile: `part` is the share of the values, such as 0.99, that do not exceed the
    /// bound. `None` if there are no values. If the bound lies beyond all finite buckets, returns the largest finite
    /// bound.
    pub(crate) fn quantile(&self, part: f64) -> Option<f64> {
        if self.count() <= 0.0 {
            return None;
        }
        let wanted = (self.count() * part).ceil().max(1.0);
        let reached = self.buckets.iter().find(|(_, count)| *count >= wanted).map(|(bound, _)| *bound);
        let largest = self.buckets.iter().rev().map(|(bound, _)| *bound).find(|bound| bound.is_finite());
        reached.filter(|bound| bound.is_finite()).or(largest)
    }
}

/// Parses a line of OpenMetrics text: `NAME{LABEL="VALUE",...} NUMBER [TIME] [# EXEMPLAR]`.
fn parse_line(line: &str) -> Option<(&str, Series)> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => parse_labels(inside)?,
        None => (Vec::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    (!name.is_empty()).then_some((name, Series { labels, value }))
}

/// Parses the labels of a metric up to the closing brace. Returns the labels and the text after the brace.
fn parse_labels(mut text: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let (value, rest) = parse_value(rest)?;
        labels.push((name.to_owned(), value));
        text = rest.strip_prefix(',').unwrap_or(rest);
    }
}

/// Parses the value of a label up to its closing quote. In the value, quotes, backslashes and line feeds are escaped.
fn parse_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP thalweg_healthy 1 while all writes are accepted.
# TYPE thalweg_healthy gauge
thalweg_healthy 1
thalweg_http_requests_total{operation=\"kv_put\",status=\"2xx\"} 10
thalweg_http_requests_total{operation=\"kv_get\",status=\"5xx\"} 2 # {trace=\"x\"} 1
thalweg_group_lag{stream=\"a \\\"b\\\\\",group=\"g\\n}\"} 7
thalweg_d_seconds_sum{k=\"a\"} 0.5
thalweg_d_seconds_count{k=\"a\"} 4
thalweg_d_seconds_bucket{le=\"0.001\",k=\"a\"} 1
thalweg_d_seconds_bucket{le=\"0.01\",k=\"a\"} 3
thalweg_d_seconds_bucket{le=\"+Inf\",k=\"a\"} 4
# EOF
";

    #[test]
    fn names_labels_and_values_are_parsed() {
        let metrics = Metrics::parse(TEXT);
        assert_eq!((metrics.sum("healthy"), metrics.sum("http_requests_total")), (Some(1.0), Some(12.0)));
        assert_eq!(metrics.of("http_requests_total", "status", "5xx"), Some(2.0));
        assert_eq!(metrics.sum_where("http_requests_total", |of| of.label("status") == "4xx"), Some(0.0));
        assert_eq!(metrics.sum("none"), None);
        let lag = &metrics.series("group_lag")[0];
        assert_eq!((lag.label("stream"), lag.label("group"), lag.value), ("a \"b\\", "g\n}", 7.0));
    }

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let all = Metrics::parse(TEXT).histogram("d_seconds", |of| of.label("k") == "a");
        assert_eq!((all.count(), all.mean()), (4.0, Some(0.125)));
        assert_eq!((all.quantile(0.25), all.quantile(0.5), all.quantile(1.0)), (Some(0.001), Some(0.01), Some(0.01)));
        assert_eq!(all.since(&all).quantile(0.5), None, "no new values");
        let none = Metrics::parse(TEXT).histogram("d_seconds", |of| of.label("k") == "b");
        assert_eq!((none.count(), none.mean(), none.quantile(0.5)), (0.0, None, None));
        assert_eq!(all.since(&none), all);
        assert_eq!(none.since(&all), none, "a restarted server counts from zero");
    }

    #[test]
    fn no_text_makes_the_parser_panic() {
        for odd in [
            "",
            "{",
            "a{",
            "a{b",
            "a{b=",
            "a{b=\"",
            "a{b=\"\\",
            "a{b=\"c\"",
            "a{b=\"c\"}",
            "a{} x",
            "a",
            " 1",
            "ü{ü=\"ü\\ü\"} 1",
        ] {
            let parsed = Metrics::parse(odd);
            assert!(parsed.0.len() <= 1, "{odd}");
        }
        // The parser accepts every prefix of a valid text without a failure.
        for end in (0..TEXT.len()).filter(|end| TEXT.is_char_boundary(*end)) {
            Metrics::parse(&TEXT[..end]);
        }
    }
}
