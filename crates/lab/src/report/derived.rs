//! Plots and sentences for a report without any. They are derived from the rates and the 99th percentiles in its
//! tables.

use super::{
    Cell, Plot, Table, number,
    plots::{self, Axis, Bar},
};

/// Maximum number of sentences that are derived from a report's tables.
const MAX_SENTENCES: usize = 4;
/// Maximum number of rows of a table that gets a plot. Longer tables get none.
const MAX_ROWS: usize = 40;

/// Returns plots of each table with several rows: one of its first column with a rate, and one of its 99th percentiles.
pub(super) fn plots_of(tables: &[Table]) -> Vec<Plot> {
    columns(tables).filter_map(|(table, column)| of_column(table, column)).collect()
}

/// Returns one sentence for each plotted column (a rate or a 99th percentile), with its lowest and its highest value.
pub(super) fn sentences(tables: &[Table]) -> Vec<String> {
    let sentence = |(table, column): (&Table, usize)| {
        let rows: Vec<Bar> = table.rows.iter().filter_map(|row| bar(row, column)).collect();
        let (low, high) = (rows.iter().min_by(by_value)?, rows.iter().max_by(by_value)?);
        let [from, to] = [low, high].map(|row| format!("{} ({})", number(row.value), row.label));
        Some(format!("{}: {} from {from} to {to}.", table.title, table.columns[column]))
    };
    columns(tables).filter_map(sentence).take(MAX_SENTENCES).collect()
}

fn by_value(left: &&Bar, right: &&Bar) -> std::cmp::Ordering {
    left.value.total_cmp(&right.value)
}

/// Returns the columns that get a plot, each with its table. They are the first column with a rate and the column of
/// 99th percentiles, in tables of 2 to 40 rows.
fn columns(tables: &[Table]) -> impl Iterator<Item = (&Table, usize)> {
    let is_drawn = |table: &&Table| (2..=MAX_ROWS).contains(&table.rows.len());
    tables.iter().filter(is_drawn).flat_map(|table| columns_of(table).into_iter().map(move |column| (table, column)))
}

fn columns_of(table: &Table) -> Vec<usize> {
    let first = |matches: fn(&str) -> bool| (0..table.columns.len()).find(|column| matches(table.columns[*column]));
    let rate = first(|name| name.ends_with("/s") && !name.contains("asked") && !name.contains("published"));
    let tail = first(|name| name.starts_with("p99 "));
    rate.into_iter().chain(tail).collect()
}

fn of_column(table: &Table, column: usize) -> Option<Plot> {
    let rows: Vec<Bar> = table.rows.iter().filter_map(|row| bar(row, column)).collect();
    let name = table.columns[column];
    let file = name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let caption = "One dot for each row of the table with this title.";
    // A logarithmic axis shows ratios. Rows of a table often differ by orders of magnitude.
    let draw = || plots::rows(&file, &format!("{name}: {}", table.title), caption, &Axis::log(name), &rows);
    (rows.len() > 1).then(draw)
}

/// Returns the bar that a plot shows for one row of a table, with the row's value in the column `column`. The bar's
/// label consists of the texts at the start of the row. Returns `None` if the value cannot be drawn.
fn bar(row: &[Cell], column: usize) -> Option<Bar> {
    let value = match row[column] {
        Cell::Count(count) => count as f64,
        Cell::Number(value) => value,
        Cell::Text(_) | Cell::Missing(()) => return None,
    };
    let end = row.iter().position(|cell| matches!(cell, Cell::Number(_) | Cell::Missing(()))).unwrap_or(row.len());
    let label: Vec<String> = row[..end].iter().map(Cell::text).collect();
    let is_shown = value.is_finite() && value > 0.0 && !label.is_empty();
    let label = label.join(", ");
    is_shown.then(|| Bar { label, store: String::new(), is_pale: false, value, interval: (value, value) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::cells;

    #[test]
    fn rates_and_tails_of_a_table_are_drawn() {
        let mut table = Table::new("figures");
        for (scenario, rate) in [("a", 10.0), ("b", f64::NAN), ("c", 1000.0)] {
            table.row(cells! {
                "scenario" => scenario, "batch" => 7_u64, "appends/s" => rate, "p99 µs" => 5.0,
            });
        }
        let plots = plots_of(&[table.clone()]);
        assert_eq!(plots.len(), 2);
        assert_eq!((&*plots[0].title, &*plots[1].title), ("appends/s: figures", "p99 µs: figures"));
        assert!(plots[0].svg.contains("c, 7") && !plots[0].svg.contains("b, 7"), "{}", plots[0].svg);
        let said = sentences(&[table.clone()]);
        assert_eq!(said[0], "figures: appends/s from 10.0 (a, 7) to 1,000 (c, 7).");
        table.rows.truncate(1);
        assert!(plots_of(&[table]).is_empty(), "one row is no comparison");
    }
}
