//! Flame graphs: each function is a box above its caller, as wide as its share of the profile.

use std::fmt::Write as _;

use super::{
    super::{Plot, PlotKind},
    CHARACTER, Form, escaped, number,
};
use crate::profile::{Call, Stacks};

/// Width of a wide flame graph in units of the drawing. It exceeds that of other plots, because names of functions are
/// long.
const WIDTH: f64 = 1080.0;
/// Height of a function's box in units of the drawing.
const ROW: f64 = 16.0;
/// Minimum width of a function's box in units of the drawing. Narrower boxes and all boxes above them are left out.
const MIN_WIDTH: f64 = 1.0;
/// Maximum number of rows of boxes. Functions in higher rows are left out.
const MAX_ROWS: usize = 90;
/// Width of a character in the font of the boxes, in units of the drawing.
const SMALL: f64 = CHARACTER * 11.0 / 13.0;

/// Draws a flame graph of a profile.
pub fn flame(name: &str, title: &str, caption: &str, stacks: &Stacks) -> Plot {
    Plot {
        name: name.to_owned(),
        title: title.to_owned(),
        caption: caption.to_owned(),
        svg: draw(Form::Wide, title, stacks),
        narrow: draw(Form::Narrow, title, stacks),
        kind: PlotKind::Profile,
    }
}

fn draw(form: Form, title: &str, stacks: &Stacks) -> String {
    let width = if form == Form::Wide { WIDTH } else { form.width() };
    let root = stacks.root();
    let scale = if root.weight > 0.0 { width / root.weight } else { 0.0 };
    let rows = rows_of(root, scale);
    let height = rows.max(1) as f64 * ROW + 4.0;
    let mut svg = format!(
        r#"<svg class="{} flame" role="img" aria-label="{}" viewBox="0 0 {width:.0} {height:.0}">"#,
        form.class(),
        escaped(title)
    );
    let mut graph = Graph { form, svg: &mut svg, scale, height, all: root.weight, unit: stacks.unit() };
    graph.callees(root, 0.0, 0);
    svg.push_str("</svg>");
    svg
}

/// Returns the number of rows of boxes that a call needs for the functions that it calls, directly or indirectly.
fn rows_of(call: &Call, scale: f64) -> usize {
    let wide = call.callees.values().filter(|callee| callee.weight * scale >= MIN_WIDTH);
    wide.map(|callee| 1 + rows_of(callee, scale)).max().unwrap_or(0).min(MAX_ROWS)
}

struct Graph<'a> {
    form: Form,
    svg: &'a mut String,
    /// Width in the drawing for each unit of weight.
    scale: f64,
    height: f64,
    /// Sum of the weights of all stacks in the profile.
    all: f64,
    unit: &'static str,
}

impl Graph<'_> {
    fn callees(&mut self, call: &Call, mut left: f64, row: usize) {
        if row >= MAX_ROWS {
            return;
        }
        for (name, callee) in &call.callees {
            let width = callee.weight * self.scale;
            if width >= MIN_WIDTH {
                self.rectangle(name, callee, (left, width), row);
                self.callees(callee, left, row + 1);
            }
            left += width;
        }
    }

    fn rectangle(&mut self, name: &str, call: &Call, (left, width): (f64, f64), row: usize) {
        let top = self.height - (row + 1) as f64 * ROW - 2.0;
        let colour = if row == 0 { 5 } else { colour_of(name) };
        let _ = write!(
            self.svg,
            r#"<g><rect class="s{colour}" x="{left:.1}" y="{top:.1}" width="{width:.1}" height="{ROW}"/>"#
        );
        let room = ((width - 6.0) / SMALL) as usize;
        if room >= 3 {
            let shown = cut(&short(name), room);
            let _ = write!(
                self.svg,
                r#"<text class="inside" x="{:.1}" y="{:.1}" text-anchor="start">{}</text>"#,
                left + 3.0,
                top + 12.0,
                escaped(&shown)
            );
        }
        if self.form == Form::Wide {
            let percent = 100.0 * call.weight / self.all;
            let what = format!("{name}: {} {}, {} %", number(call.weight), self.unit, number(percent));
            let _ = write!(self.svg, "<title>{}</title>", escaped(&what));
        }
        self.svg.push_str("</g>");
    }
}

/// Returns the number of a function's colour. Functions of Thalweg, of the kernel, of other Rust code, and of other
/// code have different colours.
fn colour_of(name: &str) -> usize {
    if name.ends_with("_[k]") {
        1
    } else if name.contains("thalweg") {
        0
    } else if name.contains("::") {
        2
    } else {
        5
    }
}

/// Shortens the path of a function to the function and its type or module, without generic arguments.
fn short(name: &str) -> String {
    let (mut plain, mut depth) = (String::with_capacity(name.len()), 0_u32);
    // A name of the form `<Type as Trait>::function` begins with the type.
    let name = name.strip_prefix('<').map_or_else(|| name.to_owned(), |rest| rest.replacen(" as ", "<", 1));
    for letter in name.chars() {
        match letter {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(letter),
            _ => {}
        }
    }
    let parts: Vec<&str> = plain.split("::").filter(|part| !part.is_empty()).collect();
    parts[parts.len().saturating_sub(2)..].join("::")
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most { text.to_owned() } else { text.chars().take(most - 1).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks() -> Stacks {
        let mut stacks = Stacks::default();
        stacks.add(["commit", "thalweg_log::commit::lead", "fsync_[k]"], 3.0);
        stacks.add(["commit", "tokio::run<core::option::Option<u8>>", "<a & b>"], 0.9);
        stacks.add(["commit", "rare"], 0.00001);
        stacks
    }

    #[test]
    fn boxes_are_as_wide_as_their_shares() {
        let plot = flame("flame-cpu", "a <title>", "how to read it", &stacks());
        assert_eq!(plot.kind, PlotKind::Profile);
        for part in
            ["commit::lead</text>", "3.00 s, 76.9 %", "fsync_[k]", "&lt;a &amp; b&gt;: 0.900 s", "&lt;title&gt;"]
        {
            assert!(plot.svg.contains(part), "{part} in {}", plot.svg);
        }
        assert!(plot.svg.contains(&format!(r#"width="{:.1}""#, 3.0 / 3.90001 * WIDTH)), "{}", plot.svg);
        assert!(!plot.svg.contains("rare"), "too narrow to be seen");
        assert!(plot.svg.contains("s0") && plot.svg.contains("s1") && plot.svg.contains("s2"));
        assert!(!plot.narrow.contains("<title>") && plot.narrow.contains("viewBox=\"0 0 360 "), "{}", plot.narrow);
        assert_eq!(plot.svg.matches("<rect").count(), 5);
        assert!(plot.file().contains("<rect width=\"100%\""));
    }

    #[test]
    fn an_empty_profile_has_no_boxes() {
        let plot = flame("flame-lock", "t", "c", &Stacks::default());
        assert!(!plot.svg.contains("<rect") && !plot.svg.contains("NaN") && !plot.svg.contains("inf"), "{}", plot.svg);
    }

    #[test]
    fn names_are_shortened_to_their_ends() {
        let shown = [
            "thalweg_log::commit::<impl thalweg_log::shared::Shared>::lead",
            "<thalweg_log::Log as core::fmt::Debug>::fmt",
            "main",
            "tokio::runtime::task::poll<T,S>",
        ]
        .map(short);
        assert_eq!(shown, ["commit::lead", "Log::fmt", "main", "task::poll"]);
        assert_eq!(cut("abcdef", 4), "abc…");
    }
}
