//! A server's metrics, parsed from the text of its `/metrics`, and their change between two readings.

use std::collections::BTreeMap;

/// Values of a server's metrics at one moment, or their increase between two moments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Values by name and labels, in the form `name{label="value"}`.
    values: BTreeMap<String, f64>,
}

impl Metrics {
    /// Parses the text format of Prometheus. Lines that are neither comments nor values are skipped.
    pub fn parse(text: &str) -> Self {
        let value = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self { values: lines.filter_map(value).collect() }
    }

    /// Adds the increase of all values between two readings.
    pub fn add_increase(&mut self, before: &Self, after: &Self) {
        for (name, now) in &after.values {
            let then = before.values.get(name).copied().unwrap_or(0.0);
            *self.values.entry(name.clone()).or_default() += now - then;
        }
    }

    /// Returns the sum of a metric over all lines that have these labels; `None` if no line has them.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut found = self.lines(name, labels).map(|(_, value)| value).peekable();
        found.peek()?;
        Some(found.sum())
    }

    /// Returns the average of a histogram's values and their number, over all lines with these labels; `None` without
    /// values.
    pub fn average(&self, name: &str, labels: &[(&str, &str)]) -> Option<(f64, f64)> {
        let count = self.sum(&format!("{name}_count"), labels).filter(|count| *count > 0.0)?;
        Some((self.sum(&format!("{name}_sum"), labels)? / count, count))
    }

    /// Returns the upper bound of the histogram bucket in which a quantile lies. `part` is the quantile as a share,
    /// such as 0.99. Infinite for the last bucket, and `None` without values.
    pub fn quantile(&self, name: &str, labels: &[(&str, &str)], part: f64) -> Option<f64> {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (line, count) in self.lines(&format!("{name}_bucket"), labels) {
            let bound = match label(line, "le")? {
                "+Inf" => f64::INFINITY,
                bound => bound.parse().ok()?,
            };
            match buckets.iter_mut().find(|(other, _)| *other == bound) {
                Some((_, sum)) => *sum += count,
                None => buckets.push((bound, count)),
            }
        }
        buckets.sort_by(|(left, _), (right, _)| left.total_cmp(right));
        let all = buckets.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
        buckets.iter().find(|(_, count)| *count >= all * part).map(|(bound, _)| *bound)
    }

    /// Returns the lines of a metric that have these labels.
    fn lines(&self, name: &str, labels: &[(&str, &str)]) -> impl Iterator<Item = (&str, f64)> {
        // Keys that begin with the metric's name are adjacent in the map.
        let begin = self.values.range(name.to_owned()..);
        begin.map(|(line, value)| (&**line, *value)).take_while(move |(line, _)| line.starts_with(name)).filter(
            move |(line, _)| {
                let is_name = matches!(line.as_bytes().get(name.len()), None | Some(b'{'));
                is_name && labels.iter().all(|(name, value)| label(line, name) == Some(*value))
            },
        )
    }
}

/// Returns the value of a label in a line. A value with an escaped quote ends at that quote.
fn label<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let labels = line.split_once('{')?.1;
    let is_begin = |at: usize| at == 0 || labels.as_bytes()[at - 1] == b',';
    let (at, _) =
        labels.match_indices(name).find(|(at, _)| is_begin(*at) && labels[at + name.len()..].starts_with("=\""))?;
    labels[at + name.len() + 2..].split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str =
        "# TYPE a counter\na_total 5\nb_seconds_sum{stage=\"x\"} 1.0\nb_seconds_count{stage=\"x\"} 2\n";
    const AFTER: &str = "a_total 7\na_total_more 100\nb_seconds_sum{stage=\"x\"} 4.0\nb_seconds_count{stage=\"x\"} 4\n\
        b_seconds_sum{stage=\"y\",other_stage=\"x\"} 1.0\nb_seconds_count{stage=\"y\",other_stage=\"x\"} 1\n\
        b_seconds_bucket{stage=\"x\",le=\"0.5\"} 1\nb_seconds_bucket{stage=\"x\",le=\"+Inf\"} 4\n\
        b_seconds_bucket{stage=\"y\",le=\"0.5\"} 1\nb_seconds_bucket{stage=\"y\",le=\"+Inf\"} 1\nnot a line\n";

    #[test]
    fn increases_are_summed_over_labels() {
        let mut metrics = Metrics::default();
        let (before, after) = (Metrics::parse(BEFORE), Metrics::parse(AFTER));
        (0..2).for_each(|_| metrics.add_increase(&before, &after));
        assert_eq!(metrics.sum("a_total", &[]), Some(4.0));
        assert_eq!(metrics.average("b_seconds", &[("stage", "x")]), Some((1.5, 4.0)));
        assert_eq!(metrics.average("b_seconds", &[]), Some((8.0 / 6.0, 6.0)));
        assert_eq!(metrics.average("b_seconds", &[("stage", "z")]), None);
        assert_eq!(metrics.sum("c", &[]), None);
    }

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let metrics = Metrics::parse(AFTER);
        let quantile = |labels: &[(&str, &str)], part| metrics.quantile("b_seconds", labels, part);
        assert_eq!(quantile(&[("stage", "x")], 0.25), Some(0.5));
        assert_eq!(quantile(&[("stage", "x")], 0.5), Some(f64::INFINITY));
        assert_eq!(quantile(&[], 0.4), Some(0.5), "the buckets of all lines");
        assert_eq!(quantile(&[("stage", "z")], 0.5), None);
    }
}
