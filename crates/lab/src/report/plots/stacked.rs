//! Stacked bars: the parts of a whole side by side, such as the stages of a write.

use std::fmt::Write as _;

use super::{
    super::{Plot, PlotKind},
    Axis, BOTTOM, CHARACTER, Form, LINE, Span, characters, draw_grid_across, escaped, further, number, open, paragraph,
    plot, style, text, wrapped,
};

/// Height of a bar in units of the drawing.
const BAR: f64 = 24.0;

/// One part of a stacked bar, such as one stage of a write.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Name of the part. It determines the part's colour, and the legend shows it.
    pub name: String,
    /// Value of the part, in the unit of the axis; drawn as a length. A part whose value is not above zero is not
    /// drawn.
    pub value: f64,
}

/// Draws one bar for each pair of a label and its parts, from zero on a linear axis. `caption` explains how to read the
/// plot.
pub fn stacked(name: &str, title: &str, caption: &str, axis: &Axis, bars: &[(String, Vec<Part>)]) -> Plot {
    Plot { kind: PlotKind::Parts, ..plot(name, title, caption, |form| draw(form, title, axis, bars)) }
}

fn draw(form: Form, title: &str, axis: &Axis, bars: &[(String, Vec<Part>)]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for part in bars.iter().flat_map(|(_, parts)| parts) {
        if part.value > 0.0 && !names.contains(&&*part.name) {
            names.push(&part.name);
        }
    }
    let whole = |parts: &[Part]| parts.iter().map(|part| part.value.max(0.0)).sum::<f64>();
    let ends = bars.iter().map(|(_, parts)| whole(parts)).chain([0.0]);
    let across = Span::of(axis.scale, ends, (8.0, form.width() - 90.0));
    let (legend, top) = legend(form, &names);
    let labels: Vec<_> = bars.iter().map(|(label, _)| wrapped(label, characters(form.width() - 16.0))).collect();
    let bottom = top + labels.iter().map(|label| LINE + BAR + 12.0 + further(label)).sum::<f64>();
    let label = wrapped(&axis.label, characters(form.width() - 82.0));
    let mut svg = open(form, bottom + BOTTOM + further(&label), title).replacen("\"plot", "\"stacked plot", 1);
    draw_grid_across(&mut svg, form, &across, (top, bottom));
    svg.push_str(&legend);
    let mut y = top;
    for ((_, parts), label) in bars.iter().zip(&labels) {
        paragraph(&mut svg, (8.0, y + 14.0), "start", label);
        y += LINE + further(label) + 4.0;
        draw_bar(&mut svg, form, y, parts, &names, &across);
        if let Some(end) = across.at(whole(parts)) {
            text(&mut svg, (end + 8.0, y + BAR / 2.0 + 4.5), "start", &number(whole(parts)));
        }
        y += BAR + 8.0;
    }
    paragraph(&mut svg, ((form.width() - 82.0) / 2.0, bottom + BOTTOM - 6.0), "middle", &label);
    svg.push_str("</svg>");
    svg
}

fn draw_bar(svg: &mut String, form: Form, top: f64, parts: &[Part], names: &[&str], across: &Span) {
    let mut sum = 0.0;
    for part in parts.iter().filter(|part| part.value > 0.0) {
        let (Some(left), Some(right)) = (across.at(sum), across.at(sum + part.value)) else { continue };
        sum += part.value;
        let place = names.iter().position(|name| *name == part.name).unwrap_or(0);
        let _ = write!(
            svg,
            r#"<g><rect class="{}" x="{left:.1}" y="{top:.1}" width="{:.1}" height="{BAR}"/>"#,
            colour(place),
            right - left
        );
        if form == Form::Wide {
            let _ = write!(svg, "<title>{}: {}</title>", escaped(&part.name), number(part.value));
        }
        svg.push_str("</g>");
    }
}

/// Returns the CSS classes of the part at position `place` in the legend. If there are more parts than colours, the
/// colours are used again in a lighter shade.
fn colour(place: usize) -> String {
    format!("s{}{}", place % style::COLOURS, if place >= style::COLOURS { " pale" } else { "" })
}

/// Returns the legend with the names of the parts as SVG, in as many lines as it needs, and the height of these lines.
fn legend(form: Form, names: &[&str]) -> (String, f64) {
    let (mut svg, mut x, mut y) = (String::new(), 8.0, 13.0);
    for (place, name) in names.iter().enumerate() {
        let width = 30.0 + name.chars().count() as f64 * CHARACTER;
        if x > 8.0 && x + width > form.width() {
            (x, y) = (8.0, y + 18.0);
        }
        let _ =
            write!(svg, r#"<rect class="{}" x="{x:.1}" y="{:.1}" width="12" height="12"/>"#, colour(place), y - 10.5);
        text(&mut svg, (x + 17.0, y), "start", name);
        x += width;
    }
    (svg, y + 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(values: &[(&str, f64)]) -> Vec<Part> {
        values.iter().map(|(name, value)| Part { name: (*name).to_owned(), value: *value }).collect()
    }

    #[test]
    fn parts_lie_side_by_side_and_their_lengths_are_their_values() {
        let bars = [
            ("put".to_owned(), parts(&[("queue", 10.0), ("fsync", 30.0), ("apply", 0.0)])),
            ("get & more".to_owned(), parts(&[("fsync", 20.0), ("negative", -1.0)])),
        ];
        let plot = stacked("stages", "t", "c", &Axis::linear("µs"), &bars);
        let rectangles: Vec<(f64, f64)> = plot
            .svg
            .split("<g><rect")
            .skip(1)
            .map(|rest| {
                let value = |name: &str| -> f64 {
                    rest.split(&format!(" {name}=\"")).nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
                };
                (value("x"), value("width"))
            })
            .collect();
        assert_eq!(rectangles.len(), 3);
        assert!((rectangles[0].0 + rectangles[0].1 - rectangles[1].0).abs() < 0.2, "{rectangles:?}");
        assert!((rectangles[1].1 / rectangles[0].1 - 3.0).abs() < 0.02, "{rectangles:?}");
        assert!(plot.svg.contains("get &amp; more") && plot.svg.contains("fsync: 30.0") && plot.svg.contains(">40.0<"));
        assert!(!plot.svg.contains("negative") && !plot.svg.contains("apply"), "{}", plot.svg);
        assert!(!plot.narrow.contains("<title>") && plot.narrow.starts_with("<svg class=\"stacked plot narrow\""));
    }
}
