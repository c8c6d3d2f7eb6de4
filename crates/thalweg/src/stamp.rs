//! The commit that the build script has stamped into this binary.

use thalweg_types::build::Build;

/// Commit of the source; empty if the source was not in a git checkout.
const COMMIT: &str = env!("THALWEG_BUILD_COMMIT");

/// Description of the build of this binary.
pub(crate) const BUILD: Build = Build {
    commit: if COMMIT.is_empty() { None } else { Some(COMMIT) },
    is_dirty: matches!(env!("THALWEG_BUILD_DIRTY").as_bytes(), b"true"),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_is_the_one_of_the_build() {
        let git = std::process::Command::new("git")
            .args(["-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "--short=12", "HEAD"])
            .output();
        let head = git.ok().filter(|git| git.status.success());
        let head = head.and_then(|git| String::from_utf8(git.stdout).ok());
        if let (Some(head), None) = (head, option_env!("THALWEG_COMMIT")) {
            assert_eq!(BUILD.commit, Some(head.trim()));
        }
    }
}
