//! Draws figures as SVG: bars with their intervals, and lines over a parameter.
//!
//! The viewer's fonts render the text; the plots use no fonts of this machine.

use plotters::prelude::{
    BLACK, ChartBuilder, Circle, Color, IntoDrawingArea, IntoLogRange, LineSeries, PathElement, RGBColor, Rectangle,
    SVGBackend, SeriesLabelPosition, WHITE,
};

use super::{Plot, number};
use crate::BenchError;

const SIZE: (u32, u32) = (960, 480);
const COLOURS: [RGBColor; 6] = [
    RGBColor(46, 94, 170),
    RGBColor(214, 118, 36),
    RGBColor(60, 140, 80),
    RGBColor(150, 70, 150),
    RGBColor(170, 50, 60),
    RGBColor(90, 90, 90),
];

/// A line of a plot: its name, and its points as pairs of parameter and figure.
pub type Line = (String, Vec<(f64, f64)>);

/// A bar of a plot: a mean with its interval.
pub struct Bar {
    /// Name of the measured store, which chooses the colour.
    pub store: String,
    /// Text that is printed beside the store's name.
    pub detail: &'static str,
    /// True to draw the bar in a lighter colour.
    pub is_pale: bool,
    /// Height of the bar: the mean, in microseconds per operation.
    pub mean: f64,
    /// Lower and upper end of the mean's interval, in microseconds.
    pub interval: (f64, f64),
}

/// Draws bars of microseconds per operation.
pub fn bars(name: &str, title: &str, bars: &[Bar]) -> Result<Plot, BenchError> {
    plot(name, title, |svg| draw_bars(svg, title, bars))
}

/// Draws lines over a parameter on a logarithmic axis.
pub fn lines(name: &str, title: &str, axes: (&str, &str), lines: &[Line]) -> Result<Plot, BenchError> {
    plot(name, title, |svg| draw_lines(svg, title, axes, lines))
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn plot(name: &str, title: &str, draw: impl FnOnce(&mut String) -> Drawn) -> Result<Plot, BenchError> {
    let mut svg = String::new();
    draw(&mut svg).map_err(BenchError::subject("the plot", "drawing"))?;
    Ok(Plot { name: name.to_owned(), title: title.to_owned(), svg })
}

fn draw_bars(svg: &mut String, title: &str, bars: &[Bar]) -> Drawn {
    let (low, high) = range(bars.iter().flat_map(|bar| [bar.interval.0, bar.interval.1]));
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..bars.len() as f64, (low..high).log_scale())?;
    let label = |at: &f64| {
        let is_middle = (at.fract() - 0.5).abs() < 0.01;
        let bar = bars.get(*at as usize).filter(|_| is_middle);
        bar.map_or(String::new(), |bar| format!("{} {}", bar.store, bar.detail))
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(bars.len() * 2 + 1)
        .x_label_formatter(&label)
        .y_desc("µs per operation, log scale")
        .y_label_formatter(&|value| number(*value))
        .draw()?;
    for (x, bar) in (0..).map(f64::from).zip(bars) {
        let colour = known_colour(&bar.store).unwrap_or(COLOURS[COLOURS.len() - 1]);
        let fill = if bar.is_pale { colour.mix(0.45).filled() } else { colour.filled() };
        chart.draw_series([Rectangle::new([(x + 0.2, low), (x + 0.8, bar.mean)], fill)])?;
        let (from, to) = bar.interval;
        chart.draw_series([PathElement::new([(x + 0.5, from), (x + 0.5, to)], BLACK.stroke_width(2))])?;
    }
    Ok(root.present()?)
}

fn draw_lines(svg: &mut String, title: &str, axes: (&str, &str), lines: &[Line]) -> Drawn {
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let (left, right) = range(points().map(|(x, _)| x));
    let (low, high) = range(points().map(|(_, y)| y));
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(45)
        .y_label_area_size(80)
        .build_cartesian_2d((left..right).log_scale(), (low..high).log_scale())?;
    chart
        .configure_mesh()
        .x_desc(axes.0)
        .y_desc(axes.1)
        .x_label_formatter(&|value| number(*value))
        .y_label_formatter(&|value| number(*value))
        .draw()?;
    for (number, (name, points)) in lines.iter().enumerate() {
        let colour = known_colour(name).unwrap_or(COLOURS[number % COLOURS.len()]);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(root.present()?)
}

fn known_colour(store: &str) -> Option<RGBColor> {
    let known = ["memory", "lsm", "redb", "sqlite", "fjall"];
    known.iter().position(|name| store.starts_with(name)).map(|number| COLOURS[number])
}

/// Returns the smallest and the largest value, with room around them for the axis; a default range if there are no
/// values.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let usable = values.filter(|value| value.is_finite() && *value > 0.0);
    let (low, high) = usable.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    if high > 0.0 { (low / 2.0, high * 2.0) } else { (0.1, 1.0) }
}
