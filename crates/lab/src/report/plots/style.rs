//! Colours and fonts of plots, for a page in light and dark and for plots in files of their own.

use std::fmt::Write as _;

/// Number of different colours for lines and bars. Their CSS variables are `--c0` to `--c5`.
pub const COLOURS: usize = 6;

/// Names and values of all colours of pages and plots on a light background.
pub const LIGHT: [(&str, &str); 15] = [
    ("fg", "#1d2025"),
    ("bg", "#ffffff"),
    ("soft", "#5c6470"),
    ("rule", "#d9dde3"),
    ("panel", "#f4f6f8"),
    ("link", "#2e5eaa"),
    ("good", "#1c6b36"),
    ("bad", "#a1232b"),
    ("warn", "#8a5a00"),
    ("c0", "#2e5eaa"),
    ("c1", "#d67624"),
    ("c2", "#3c8c50"),
    ("c3", "#964696"),
    ("c4", "#aa323c"),
    ("c5", "#5a5a5a"),
];

/// Names and values of all colours of pages and plots on a dark background.
pub const DARK: [(&str, &str); 15] = [
    ("fg", "#e4e7eb"),
    ("bg", "#15181c"),
    ("soft", "#9aa3af"),
    ("rule", "#343a43"),
    ("panel", "#1e2329"),
    ("link", "#8ab4f8"),
    ("good", "#7fce96"),
    ("bad", "#f28b90"),
    ("warn", "#e3b558"),
    ("c0", "#79a7f0"),
    ("c1", "#f0a35e"),
    ("c2", "#7fce96"),
    ("c3", "#d39ad3"),
    ("c4", "#f28b90"),
    ("c5", "#b0b6be"),
];

/// Returns the definitions of the colours as CSS variables.
pub fn variables(colours: &[(&str, &str)]) -> String {
    colours.iter().fold(String::new(), |mut out, (name, value)| {
        let _ = write!(out, "--{name}:{value};");
        out
    })
}

/// Returns the CSS rules of plots. They refer to colours by the CSS variables that [`variables`] defines.
pub fn rules() -> String {
    let mut out = "svg.plot text{fill:var(--fg);font:13px system-ui,sans-serif}\
        .grid{stroke:var(--rule);fill:none}.line{fill:none;stroke-width:2;stroke-linejoin:round}\
        .dashed{stroke-dasharray:5 3}.pale{opacity:.5}.interval{stroke:var(--fg);stroke-width:1.6}\
        .flame rect,.stacked rect{stroke:var(--bg);stroke-width:.7}svg.plot text.inside{fill:var(--bg);font-size:11px}"
        .to_owned();
    for number in 0..COLOURS {
        let _ = write!(
            out,
            ".line.s{number}{{stroke:var(--c{number})}}rect.s{number},circle.s{number}{{fill:var(--c{number})}}"
        );
    }
    out
}

/// Returns the CSS rules for a plot in a file of its own. They contain the light colours themselves instead of
/// variables.
pub fn of_file() -> String {
    let mut rules = rules();
    rules.push_str(
        "text.title{font:bold 16px sans-serif;fill:var(--fg)}text.caption{font:12px sans-serif;fill:var(--soft)}",
    );
    for (name, value) in LIGHT {
        rules = rules.replace(&format!("var(--{name})"), value);
    }
    rules
}
