//! The search for an installed Chromium. Tests of other crates include this file by its path.

use std::path::PathBuf;

/// Returns the browser in `THALWEG_CHROMIUM`, or the first one in the search path.
pub fn browser() -> Option<PathBuf> {
    if let Some(given) = std::env::var_os("THALWEG_CHROMIUM") {
        return Some(given.into());
    }
    let names = [
        "chromium",
        "chromium-browser",
        "chromium-headless-shell",
        "google-chrome",
        "chrome",
        "chrome-headless-shell",
        "headless_shell",
    ];
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name))).find(|path| path.is_file())
}
