//! The build of the running program, for its status and its reports. The program's `main` sets it once, because only
//! the crate of the program knows the commit.

use std::sync::OnceLock;

/// Source of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// Commit of the source, shortened; `None` if the source was in no checkout.
    pub commit: Option<&'static str>,
    /// True if the source had changes that were not committed.
    pub is_dirty: bool,
}

static BUILD: OnceLock<Build> = OnceLock::new();

/// Sets the build of the running program. A second call has no effect.
pub fn set(build: Build) {
    let _ = BUILD.set(build);
}

/// Returns the build of the running program; without a commit if the program has not set it.
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
