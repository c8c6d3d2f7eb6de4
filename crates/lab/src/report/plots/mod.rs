//! Plots of figures as SVG: lines over a parameter, rows of bars or dots with their intervals, stacked bars, and flame
//! graphs.
//!
//! Owns: the content of plots, and their marks. Axes are in `axis`, colours and fonts in [`style`]. The SVG uses
//! classes instead of colours, so a page can show it in light and in dark. A plot in a file of its own contains the
//! light colours ([`Plot::file`]).
//!
//! Rules: a bar begins at zero, so its length shows its value. On a logarithmic axis there are dots instead of bars.
//! The title of a plot is not part of the drawing, because the page has it as a heading. Each plot also has a narrow
//! drawing, because on a phone the words of the wide drawing would be too small to read.

mod axis;
mod flame;
mod stacked;
pub mod style;

use std::fmt::Write as _;

use self::axis::Span;
use super::{Plot, PlotKind, escape::escaped, number};

pub use self::{
    axis::{Axis, Scale},
    flame::flame,
    stacked::{Part, stacked},
};

/// A line of a plot: its name, and its points as pairs of parameter and figure.
pub type Line = (String, Vec<(f64, f64)>);

/// A row of a plot: a value with the interval of its uncertainty.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Text above the bar or dot of this row.
    pub label: String,
    /// Name of the measured store. It determines the colour.
    pub store: String,
    /// True to draw the row in a lighter colour.
    pub is_pale: bool,
    /// Value that the row shows, for example a mean.
    pub value: f64,
    /// Lower and upper end of the value's interval.
    pub interval: (f64, f64),
}

/// Form in which a plot is drawn: wide or narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Wide form, for screens, prints and files.
    Wide,
    /// Narrow form, for phones. Its points show no names, because a phone has no pointer to hover with.
    Narrow,
}

impl Form {
    /// Returns the width in units of the drawing. The font is 13 units high.
    const fn width(self) -> f64 {
        match self {
            Self::Wide => WIDTH,
            Self::Narrow => 360.0,
        }
    }

    /// Returns the right end of the area in which lines are drawn, in units of the drawing. The last label of the axis
    /// may reach beyond it.
    const fn right(self) -> f64 {
        match self {
            Self::Wide => WIDTH - 28.0,
            Self::Narrow => 328.0,
        }
    }

    /// Returns the left end of the legend in units of the drawing.
    const fn legend(self) -> f64 {
        match self {
            Self::Wide => LEFT,
            Self::Narrow => 8.0,
        }
    }

    const fn class(self) -> &'static str {
        match self {
            Self::Wide => "plot",
            Self::Narrow => "plot narrow",
        }
    }
}

/// Width of a wide plot in units of the drawing.
const WIDTH: f64 = 640.0;
const FONT: f64 = 13.0;
/// Distance between two lines of a text in units of the drawing.
const LINE: f64 = 16.0;
/// Height of the area in which lines are drawn, in units of the drawing.
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 66.0;
const BOTTOM: f64 = 42.0;
/// Height of a row whose label has one line of text, in units of the drawing.
const ROW: f64 = 38.0;
/// Estimated width of a character in units of the drawing. The lengths of labels are computed from it.
const CHARACTER: f64 = 6.9;
/// Maximum number of characters in a line of the caption of a plot in a file of its own.
const CAPTION_CHARACTERS: usize = 100;

/// Draws figures as lines over the values of a parameter. `caption` explains how to read the plot.
pub fn lines(name: &str, title: &str, caption: &str, axes: &[Axis; 2], lines: &[Line]) -> Plot {
    plot(name, title, caption, |form| draw_lines(form, title, axes, lines))
}

/// Draws one row for each value. On a linear axis the values are bars from zero, on a logarithmic axis they are dots.
pub fn rows(name: &str, title: &str, caption: &str, axis: &Axis, rows: &[Bar]) -> Plot {
    plot(name, title, caption, |form| draw_rows(form, title, axis, rows))
}

fn plot(name: &str, title: &str, caption: &str, draw: impl Fn(Form) -> String) -> Plot {
    Plot {
        name: name.to_owned(),
        title: title.to_owned(),
        caption: caption.to_owned(),
        svg: draw(Form::Wide),
        narrow: draw(Form::Narrow),
        kind: PlotKind::Figures,
    }
}

fn draw_lines(form: Form, title: &str, [x, y]: &[Axis; 2], lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let (legend, top) = legend(form, lines);
    let across = Span::of(x.scale, points().map(|(x, _)| x), (LEFT, form.right()));
    let up = Span::of(y.scale, points().map(|(_, y)| y), (top + HEIGHT, top));
    let middle = (LEFT + form.right()) / 2.0;
    let label = wrapped(&x.label, characters(2.0 * (form.width() - middle)));
    let mut svg = open(form, top + HEIGHT + BOTTOM + further(&label), title);
    draw_grid_across(&mut svg, form, &across, (top, top + HEIGHT));
    for (at, label) in up.ticks() {
        let _ = write!(svg, r#"<path class="grid" d="M{LEFT:.1} {at:.1}H{:.1}"/>"#, form.right());
        text(&mut svg, (LEFT - 6.0, at + 4.5), "end", &label);
    }
    paragraph(&mut svg, (middle, top + HEIGHT + BOTTOM - 6.0), "middle", &label);
    let centre = top + HEIGHT / 2.0;
    let _ = write!(
        svg,
        r#"<text transform="translate(14 {centre:.1}) rotate(-90)" text-anchor="middle">{}</text>"#,
        escaped(&y.label)
    );
    svg.push_str(&legend);
    for (number, (name, points)) in lines.iter().enumerate() {
        draw_line(&mut svg, form, number, name, points, (&across, &up));
    }
    svg.push_str("</svg>");
    svg
}

fn draw_rows(form: Form, title: &str, axis: &Axis, rows: &[Bar]) -> String {
    let ends = rows.iter().flat_map(|row| [row.value, row.interval.0, row.interval.1]);
    // The margin at the right leaves space for the numbers after the marks.
    let across = Span::of(axis.scale, ends, (8.0, form.width() - 90.0));
    let labels: Vec<_> = rows.iter().map(|row| wrapped(&row.label, characters(form.width() - 16.0))).collect();
    let bottom = labels.iter().map(|label| ROW + further(label)).sum::<f64>() + 4.0;
    let label = wrapped(&axis.label, characters(form.width() - 82.0));
    let mut svg = open(form, bottom + BOTTOM + further(&label), title);
    draw_grid_across(&mut svg, form, &across, (0.0, bottom));
    let mut top = 0.0;
    for (row, label) in rows.iter().zip(&labels) {
        paragraph(&mut svg, (8.0, top + 14.0), "start", label);
        top += further(label);
        draw_row(&mut svg, top, colour_of(&row.store, 0), row, &across);
        top += ROW;
    }
    paragraph(&mut svg, ((form.width() - 82.0) / 2.0, bottom + BOTTOM - 6.0), "middle", &label);
    svg.push_str("</svg>");
    svg
}

impl Plot {
    /// Returns the plot as an SVG file, with its title, its caption and the light colours.
    pub fn file(&self) -> String {
        let size = self.svg.split_once("viewBox=\"0 0 ").and_then(|(_, rest)| rest.split_once('"'));
        let size = size.and_then(|(size, _)| size.split_once(' '));
        let size = size.and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
        let (width, height): (f64, f64) = size.unwrap_or((WIDTH, HEIGHT));
        let captions = wrapped(&self.caption, CAPTION_CHARACTERS);
        let top = 42.0 + 16.0 * captions.len() as f64;
        let mut out = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {:.0} {:.0}" width="{0:.0}" height="{1:.0}">"#,
            width + 20.0,
            top + height + 10.0
        );
        let _ =
            write!(out, "<style>{}</style><rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>", style::of_file());
        let _ = write!(out, r#"<text class="title" x="10" y="26">{}</text>"#, escaped(&self.title));
        for (number, line) in captions.iter().enumerate() {
            let y = 46.0 + 16.0 * number as f64;
            let _ = write!(out, r#"<text class="caption" x="10" y="{y:.0}">{}</text>"#, escaped(line));
        }
        let place = format!(r#"<svg x="10" y="{top:.0}" width="{width:.0}" height="{height:.0}" "#);
        out.push_str(&self.svg.replacen("<svg ", &place, 1));
        out.push_str("</svg>\n");
        out
    }
}

/// Breaks a text between words into lines of at most `characters` characters. A single word that is longer gets a line
/// of its own.
fn wrapped(text: &str, characters: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= characters => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Returns the number of characters that fit into a width in units of the drawing.
fn characters(width: f64) -> usize {
    (width / CHARACTER) as usize
}

/// Returns the height of all lines of a text except the first.
fn further(lines: &[String]) -> f64 {
    lines.len().saturating_sub(1) as f64 * LINE
}

fn open(form: Form, height: f64, title: &str) -> String {
    let (class, width) = (form.class(), form.width());
    format!(r#"<svg class="{class}" role="img" aria-label="{}" viewBox="0 0 {width:.0} {height:.0}">"#, escaped(title))
}

/// Writes the lines of a text. The first line is at `y`.
fn paragraph(svg: &mut String, (x, y): (f64, f64), anchor: &str, lines: &[String]) {
    for (number, line) in lines.iter().enumerate() {
        text(svg, (x, y + number as f64 * LINE), anchor, line);
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    let _ = write!(svg, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#, escaped(text));
}

/// Draws the grid lines and the values of a horizontal axis. Values at its ends are moved inward if they would reach
/// beyond the drawing.
fn draw_grid_across(svg: &mut String, form: Form, across: &Span, (top, bottom): (f64, f64)) {
    let mut free_from = f64::MIN;
    for (at, label) in across.ticks() {
        let _ = write!(svg, r#"<path class="grid" d="M{at:.1} {top:.1}V{bottom:.1}"/>"#);
        let half = label.chars().count() as f64 * CHARACTER / 2.0;
        let middle = at.min(form.width() - half).max(half);
        if middle - half > free_from {
            text(svg, (middle, bottom + 17.0), "middle", &label);
            free_from = middle + half + CHARACTER;
        }
    }
}

/// Returns the legend in as many lines of text as it needs, and the height of these lines. A plot with a single unnamed
/// line gets no legend.
fn legend(form: Form, lines: &[Line]) -> (String, f64) {
    let left = form.legend();
    let (mut svg, mut x, mut y) = (String::new(), left, FONT);
    for (number, (name, _)) in lines.iter().enumerate().filter(|(_, (name, _))| !name.is_empty()) {
        let words = wrapped(name, characters(form.width() - left - 34.0));
        let longest = words.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        let width = 34.0 + longest as f64 * CHARACTER;
        if x > left && x + width > form.width() {
            (x, y) = (left, y + 18.0);
        }
        let _ = write!(svg, r#"<path class="line {}" d="M{x:.1} {:.1}h18"/>"#, colours(name, number), y - 4.5);
        paragraph(&mut svg, (x + 24.0, y), "start", &words);
        (x, y) = (x + width, y + further(&words));
    }
    let height = if svg.is_empty() { 10.0 } else { y + 12.0 };
    (svg, height)
}

fn draw_line(
    svg: &mut String,
    form: Form,
    line: usize,
    name: &str,
    points: &[(f64, f64)],
    (across, up): (&Span, &Span),
) {
    let colours = colours(name, line);
    let mut path = String::new();
    let mut is_drawing = false;
    for (x, y) in points {
        let (Some(left), Some(top)) = (across.at(*x), up.at(*y)) else {
            is_drawing = false;
            continue;
        };
        let _ = write!(path, "{}{left:.1} {top:.1}", if is_drawing { 'L' } else { 'M' });
        is_drawing = true;
    }
    let _ = write!(svg, r#"<path class="line {colours}" d="{path}"/>"#);
    // Many points form a curve by themselves, and large marks would hide it.
    let radius = if points.len() <= 40 { 3.0 } else { 1.2 };
    for (x, y) in points {
        if let (Some(left), Some(top)) = (across.at(*x), up.at(*y)) {
            let _ = write!(svg, r#"<circle class="{colours}" cx="{left:.1}" cy="{top:.1}" r="{radius}""#);
            if form == Form::Narrow {
                svg.push_str("/>");
                continue;
            }
            let what = format!("{name}: {}, {}", across.label(*x), number(*y));
            let _ = write!(svg, "><title>{}</title></circle>", escaped(what.trim_start_matches(": ")));
        }
    }
}

/// Draws the bar or dot of a row, with its interval. `top` is the position of the last line of the row's label.
fn draw_row(svg: &mut String, top: f64, colour: usize, row: &Bar, across: &Span) {
    let Some(end) = across.at(row.value) else {
        return text(svg, (8.0, top + 31.0), "start", "not measured");
    };
    let pale = if row.is_pale { " pale" } else { "" };
    let middle = top + 26.5;
    if across.begins_at_zero() {
        let begin = across.at(0.0).unwrap_or(8.0);
        let _ = write!(
            svg,
            r#"<rect class="s{colour}{pale}" x="{:.1}" y="{:.1}" width="{:.1}" height="13"/>"#,
            begin.min(end),
            top + 20.0,
            (end - begin).abs().max(1.0)
        );
    } else {
        let _ = write!(svg, r#"<circle class="s{colour}{pale}" cx="{end:.1}" cy="{middle:.1}" r="5"/>"#);
    }
    let (low, high) = (across.at(row.interval.0), across.at(row.interval.1));
    if let (Some(low), Some(high)) = (low, high) {
        let _ = write!(svg, r#"<path class="interval" d="M{low:.1} {middle:.1}H{high:.1}"/>"#);
    }
    let behind = end.max(high.unwrap_or(end)).max(across.at(0.0).unwrap_or(end));
    text(svg, (behind + 8.0, middle + 4.5), "start", &number(row.value));
}

/// Returns the CSS classes for the line or row `number` with this name. If a plot has more lines than there are
/// colours, the colours are used again with dashed lines.
fn colours(name: &str, number: usize) -> String {
    let dashed = if number >= style::COLOURS { " dashed" } else { "" };
    format!("s{}{dashed}", colour_of(name, number))
}

/// Returns the number of the colour for line or row `number` with this name. If the name begins with that of a known
/// store, the colour depends only on the store, so it is the same in all plots.
fn colour_of(name: &str, number: usize) -> usize {
    let known = ["memory", "lsm", "redb", "sqlite", "fjall"];
    known.iter().position(|known| name.starts_with(known)).unwrap_or(number % style::COLOURS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(name: &str, value: f64) -> Bar {
        Bar {
            label: format!("{name} (log)"),
            store: name.to_owned(),
            is_pale: false,
            value,
            interval: (value * 0.9, value * 1.1),
        }
    }

    /// Returns the values of a numeric attribute in all elements of a plot.
    fn attribute(svg: &str, name: &str) -> Vec<f64> {
        let marker = format!(" {name}=\"");
        let values = svg.split(&*marker).skip(1).map(|rest| rest.split('"').next().unwrap());
        values.filter_map(|value| value.parse().ok()).collect()
    }

    #[test]
    fn the_length_of_a_bar_is_its_value() {
        let axis = Axis::linear("µs per operation");
        let plot = rows("p", "t", "", &axis, &[bar("lsm", 10.0), bar("redb", 40.0), bar("sqlite", 20.0)]);
        let lengths = attribute(&plot.svg, "width");
        assert!(
            (lengths[1] / lengths[0] - 4.0).abs() < 0.02 && (lengths[2] / lengths[0] - 2.0).abs() < 0.02,
            "{lengths:?}"
        );
        assert!(!plot.svg.contains("<title>t") && !plot.svg.contains(">t<"), "the page has the title");
        assert_eq!(rows("p", "t", "", &Axis::log("x"), &[bar("lsm", 10.0)]).svg.matches("<rect").count(), 0);
    }

    #[test]
    fn points_lie_where_their_values_are() {
        let line = ("a & b".to_owned(), vec![(1.0, 10.0), (10.0, 100.0), (100.0, f64::NAN), (1000.0, 1000.0)]);
        let plot = lines("p", "t", "", &[Axis::log("x"), Axis::log("y")], &[line]);
        let (x, y) = (attribute(&plot.svg, "cx"), attribute(&plot.svg, "cy"));
        assert_eq!((x.len(), y.len()), (3, 3), "a point without a value is left out");
        assert!(x[0] < x[1] && x[1] < x[2] && y[0] > y[1] && y[1] > y[2], "{x:?} {y:?}");
        assert!((x[2] - x[0] - 3.0 * (x[1] - x[0])).abs() < 0.5, "decades are equal: {x:?}");
        assert!(plot.svg.contains("a &amp; b") && plot.svg.contains("a &amp; b: 10, 100"));
    }

    #[test]
    fn a_plot_without_values_is_empty_and_a_file_stands_alone() {
        let empty = lines("p", "a <title>", "read me", &[Axis::log("x"), Axis::linear("y")], &[]);
        assert!(!empty.svg.contains("NaN") && !empty.svg.contains("inf"), "{}", empty.svg);
        let file = empty.file();
        assert!(file.contains("xmlns=") && file.contains("a &lt;title&gt;") && file.contains("read me"), "{file}");
        assert!(!file.contains("var("), "viewers of images know no variables");
        assert!(!rows("p", "t", "", &Axis::linear("x"), &[bar("x", f64::NAN)]).svg.contains("NaN"));
    }

    /// Returns the left and right ends of the texts of a drawing, estimated from their lengths. The turned name of the
    /// left axis is left out.
    fn ends_of_texts(svg: &str) -> Vec<(f64, f64)> {
        let texts = svg.split("<text x=\"").skip(1).map(|rest| rest.split("</text>").next().unwrap());
        let ends = |text: &str| {
            let (head, words) = text.split_once('>').unwrap();
            let x: f64 = head.split('"').next().unwrap().parse().unwrap();
            let width = words.chars().count() as f64 * CHARACTER;
            match head.split("text-anchor=\"").nth(1).unwrap() {
                "start\"" => (x, x + width),
                "middle\"" => (x - width / 2.0, x + width / 2.0),
                _ => (x - width, x),
            }
        };
        texts.map(ends).collect()
    }

    #[test]
    fn all_words_lie_within_the_narrow_drawing_too() {
        let long = "a scenario with a name of more than fifty characters, durability disk";
        let curve = |number: u32| (format!("{number} {long}"), vec![(1.0, 90_000.0), (99.0, 98_000.0)]);
        let curves: Vec<Line> = (0..3).map(curve).collect();
        let axis = Axis::linear("time since the end of the warm-up, in seconds, of all requests that were due");
        let bars = [bar(long, 0.00123), bar("redb", 99_999.0), bar("sqlite", 12.0)];
        let percentiles: Vec<Line> = vec![("put".to_owned(), vec![(1.0, 10.0), (1_000_000.0, 3e6)])];
        let plots = [
            lines("p", "t", "", &[axis.clone(), Axis::linear("y")], &curves),
            lines("p", "t", "", &[Axis::percentiles(), Axis::log("y")], &percentiles),
            rows("p", "t", "", &axis, &bars),
            rows("p", "t", "", &Axis::log("x"), &bars),
        ];
        for plot in plots {
            for (svg, width) in [(&plot.svg, WIDTH), (&plot.narrow, 360.0)] {
                let lies_within = |(left, right): &(f64, f64)| *left > -0.1 && *right < width + 0.1;
                assert!(ends_of_texts(svg).iter().all(lies_within), "{width}: {svg}");
                assert!(svg.contains(&format!("viewBox=\"0 0 {width:.0} ")), "{svg}");
                for word in long.split(' ').filter(|_| svg.contains("scenario")) {
                    assert!(svg.contains(word), "{word} in {svg}");
                }
            }
            assert!(plot.narrow.starts_with("<svg class=\"plot narrow\"") && !plot.narrow.contains("<title>"));
            assert_eq!(plot.narrow.matches("<circle").count(), plot.svg.matches("<circle").count());
        }
    }

    #[test]
    fn captions_are_cut_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert!(wrapped("", 7).is_empty());
    }

    #[test]
    fn a_long_legend_has_several_lines() {
        let line = |number: usize| (format!("a scenario with a long name {number}"), vec![(1.0, 1.0)]);
        let plot = |count| {
            lines("p", "t", "", &[Axis::linear("x"), Axis::linear("y")], &(0..count).map(line).collect::<Vec<_>>())
        };
        let height = |plot: &Plot| {
            plot.svg.split("viewBox=\"0 0 640 ").nth(1).unwrap().split('"').next().unwrap().parse::<f64>().unwrap()
        };
        assert!(height(&plot(8)) > height(&plot(2)) + 30.0);
        assert!(plot(8).svg.contains("dashed"), "the seventh line differs from the first");
    }
}
