//! The figures as SVG, a plot per group: a bar per store with its 95 % interval, a line per store for sweeps.
//!
//! Text is left to the viewer's fonts; nothing of the system's is read.

use plotters::prelude::{
    BLACK, ChartBuilder, Circle, Color, IntoDrawingArea, IntoLogRange, LineSeries, PathElement, RGBColor, Rectangle,
    SVGBackend, SeriesLabelPosition, WHITE,
};

use super::{cells::Cell, subjects::Mode};
use crate::{
    BenchError,
    report::{Plot, number},
};

const SIZE: (u32, u32) = (960, 480);
const COLOURS: [RGBColor; 6] = [
    RGBColor(46, 94, 170),
    RGBColor(214, 118, 36),
    RGBColor(60, 140, 80),
    RGBColor(150, 70, 150),
    RGBColor(170, 50, 60),
    RGBColor(90, 90, 90),
];

/// A named line of points: parameter and figure.
pub type Line = (String, Vec<(f64, f64)>);

/// Draws the cells of one group, which share their operation.
pub fn bars(name: &str, title: &str, cells: &[&Cell]) -> Result<Plot, BenchError> {
    plot(name, title, |svg| draw_bars(svg, title, cells))
}

/// Draws lines over a logarithmic parameter.
pub fn lines(name: &str, title: &str, axes: (&str, &str), lines: &[Line]) -> Result<Plot, BenchError> {
    plot(name, title, |svg| draw_lines(svg, title, axes, lines))
}

fn plot(name: &str, title: &str, draw: impl FnOnce(&mut String) -> Result<(), String>) -> Result<Plot, BenchError> {
    let mut svg = String::new();
    draw(&mut svg).map_err(BenchError::subject("the plot", "drawing"))?;
    Ok(Plot { name: name.to_owned(), title: title.to_owned(), svg })
}

fn draw_bars(svg: &mut String, title: &str, cells: &[&Cell]) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let (low, high) = range(cells.iter().flat_map(|cell| [cell.statistics.low, cell.statistics.high]));
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(|error| text(&error))?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..cells.len() as f64, (low..high).log_scale())
        .map_err(|error| text(&error))?;
    let label = |at: &f64| {
        let is_middle = (at.fract() - 0.5).abs() < 0.01;
        cells.get(*at as usize).filter(|_| is_middle).map_or(String::new(), |cell| {
            format!("{} {}", cell.store, if cell.mode == Mode::BehindLog { "(log)" } else { "(alone)" })
        })
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(cells.len() * 2 + 1)
        .x_label_formatter(&label)
        .y_desc("µs per operation, log scale")
        .y_label_formatter(&|value| number(*value))
        .draw()
        .map_err(|error| text(&error))?;
    for (number, cell) in cells.iter().enumerate() {
        let (x, statistics) = (number as f64, &cell.statistics);
        let colour = colour(&cell.store);
        let fill = if cell.mode == Mode::BehindLog { colour.filled() } else { colour.mix(0.45).filled() };
        let bar = Rectangle::new([(x + 0.2, low), (x + 0.8, statistics.mean)], fill);
        chart.draw_series([bar]).map_err(|error| text(&error))?;
        let interval = PathElement::new([(x + 0.5, statistics.low), (x + 0.5, statistics.high)], BLACK.stroke_width(2));
        chart.draw_series([interval]).map_err(|error| text(&error))?;
    }
    root.present().map_err(|error| text(&error))
}

fn draw_lines(svg: &mut String, title: &str, axes: (&str, &str), lines: &[Line]) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let (left, right) = range(points().map(|(x, _)| x));
    let (low, high) = range(points().map(|(_, y)| y));
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(|error| text(&error))?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(45)
        .y_label_area_size(80)
        .build_cartesian_2d((left..right).log_scale(), (low..high).log_scale())
        .map_err(|error| text(&error))?;
    chart
        .configure_mesh()
        .x_desc(axes.0)
        .y_desc(axes.1)
        .x_label_formatter(&|value| number(*value))
        .y_label_formatter(&|value| number(*value))
        .draw()
        .map_err(|error| text(&error))?;
    for (number, (name, points)) in lines.iter().enumerate() {
        let colour = known_colour(name).unwrap_or(COLOURS[number % COLOURS.len()]);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))
            .map_err(|error| text(&error))?
            .label(name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        let dots = points.iter().map(|point| Circle::new(*point, 3, colour.filled()));
        chart.draw_series(dots).map_err(|error| text(&error))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
        .map_err(|error| text(&error))?;
    root.present().map_err(|error| text(&error))
}

/// Returns the colour that a store has in all plots.
fn colour(store: &str) -> RGBColor {
    known_colour(store).unwrap_or(COLOURS[COLOURS.len() - 1])
}

fn known_colour(store: &str) -> Option<RGBColor> {
    let known = ["memory", "lsm", "redb", "sqlite", "fjall"];
    known.iter().position(|name| store.starts_with(name)).map(|number| COLOURS[number])
}

/// Smallest and largest, with room around them; something drawable of nothing.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let usable = values.filter(|value| value.is_finite() && *value > 0.0);
    let (low, high) = usable.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    if high > 0.0 { (low / 2.0, high * 2.0) } else { (0.1, 1.0) }
}
