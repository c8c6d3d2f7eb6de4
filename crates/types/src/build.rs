//! Facts about the build of the running program: its source commit and its profile. The status of a server and reports
//! show them. The program's `main` sets the commit once, because only the crate of the program knows it.

use std::sync::OnceLock;

/// Source code from which the running program was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// Shortened id of the source's Git commit; `None` if the source was not in a Git checkout.
    pub commit: Option<&'static str>,
    /// True if the source had changes that were not committed.
    pub is_dirty: bool,
}

static BUILD: OnceLock<Build> = OnceLock::new();

/// Sets the build of the running program. A second call has no effect.
pub fn set(build: Build) {
    let _ = BUILD.set(build);
}

/// Returns the build of the running program. If the program has not called [`set`], the build has no commit.
#[must_use]
pub fn get() -> Build {
    BUILD.get().copied().unwrap_or(Build { commit: None, is_dirty: false })
}

/// Returns the profile of the build: `release` or `debug`.
#[must_use]
pub fn profile() -> &'static str {
    if cfg!(debug_assertions) { "debug" } else { "release" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_build_that_is_set_counts() {
        assert_eq!(get(), Build { commit: None, is_dirty: false });
        let build = Build { commit: Some("0123456789ab"), is_dirty: true };
        set(build);
        set(Build { commit: None, is_dirty: false });
        assert_eq!(get(), build);
    }
}
