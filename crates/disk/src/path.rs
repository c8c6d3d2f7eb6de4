//! Validation of paths on a disk. The real and the simulated disk use it, so they accept the same paths.
//!
//! Invariant: an accepted path names something below the root, and in exactly one way (no `.`, `..`, empty
//! component, leading or trailing slash, or NUL). So a simulated disk can compare paths as strings.

use std::io;

/// Checks the path of a file. The root itself is not a file.
pub(crate) fn check_file(path: &str) -> io::Result<()> {
    if path.is_empty() {
        return Err(refused(path, "it is empty"));
    }
    check_dir(path)
}

/// Checks the path of a directory; `""` is the root.
pub(crate) fn check_dir(path: &str) -> io::Result<()> {
    if path.is_empty() {
        return Ok(());
    }
    if path.starts_with('/') {
        return Err(refused(path, "it is absolute"));
    }
    if path.contains('\0') {
        return Err(refused(path, "it contains a NUL"));
    }
    for component in path.split('/') {
        match component {
            "" => return Err(refused(path, "it has an empty component")),
            "." | ".." => return Err(refused(path, "it has a `.` or `..` component")),
            _ => {}
        }
    }
    Ok(())
}

/// The parent directory of `path`; `""` for the root.
pub(crate) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

fn refused(path: &str, why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("path {path:?} was rejected: {why}; use a path relative to the disk's root"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_plain_relative_paths() {
        for path in ["a", "a/b", "log/000001.seg", "..a", "a..", "a b"] {
            check_file(path).unwrap();
        }
        check_dir("").unwrap();
    }

    #[test]
    fn refuses_what_could_leave_the_root_or_name_it_twice() {
        for path in ["", "/", "/etc", "..", "../a", "a/..", "a/../b", ".", "./a", "a//b", "a/", "a\0b"] {
            let error = check_file(path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path:?}");
        }
    }

    #[test]
    fn parent_of_a_top_level_name_is_the_root() {
        assert_eq!((parent("a"), parent("a/b"), parent("a/b/c")), ("", "a", "a/b"));
    }
}
