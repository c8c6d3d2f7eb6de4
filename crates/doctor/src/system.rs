//! Reads files of the kernel below `/proc` and `/sys`, or copies of such files below a directory that a test has made.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Maximum number of bytes that are read from one file of the kernel. `mountinfo` of a busy container host has some
/// hundred KiB.
const MAX_BYTES: u64 = 4 << 20;

/// The system that the doctor examines: the root directory below which the kernel's files (`/proc`, `/sys`) are read.
#[derive(Clone, Debug)]
pub struct System {
    root: PathBuf,
}

impl System {
    /// Returns the system that this process runs on.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Self::below(Path::new("/"))
    }

    /// Returns a system for tests, whose `/proc` and `/sys` are directories below `root`.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Returns the path of a file that is named relative to the root.
    #[must_use]
    pub fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// Reads a file as text without the white space around it; `None` if it cannot be read.
    #[must_use]
    pub fn text(&self, relative: &str) -> Option<String> {
        use std::io::Read as _;
        let mut bytes = Vec::new();
        fs::File::open(self.path(relative)).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Reads a file that contains one number; `None` if it contains none or cannot be read.
    #[must_use]
    pub fn number(&self, relative: &str) -> Option<u64> {
        self.text(relative)?.parse().ok()
    }

    /// Returns the number after `label` in a file with lines of the form `label number`; `None` if there is none.
    #[must_use]
    pub fn field(&self, relative: &str, label: &str) -> Option<u64> {
        let text = self.text(relative)?;
        let rest = text.lines().find_map(|line| line.strip_prefix(label))?;
        rest.split_whitespace().next()?.parse().ok()
    }

    /// Returns the word in brackets of a file such as `always [madvise] never`: `madvise`. `None` if there is none.
    #[must_use]
    pub fn chosen(&self, relative: &str) -> Option<String> {
        let text = self.text(relative)?;
        Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
    }
}

/// Creates a system for a test: a temporary directory with `files`, given as pairs of path and contents.
#[cfg(test)]
pub(crate) fn with_files(files: &[(&str, &str)]) -> (tempfile::TempDir, System) {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let system = System::below(root.path());
    (root, system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_numbers_fields_and_choices() {
        let (_root, system) = with_files(&[
            ("proc/sys/vm/swappiness", "60\n"),
            ("proc/meminfo", "MemTotal:       2048 kB\nSwapTotal:      0 kB\n"),
            ("sys/thp", "always [madvise] never\n"),
            ("sys/odd", "max\n"),
        ]);
        assert_eq!(system.number("proc/sys/vm/swappiness"), Some(60));
        assert_eq!(system.field("proc/meminfo", "MemTotal:"), Some(2048));
        assert_eq!(system.chosen("sys/thp").as_deref(), Some("madvise"));
        assert_eq!((system.number("sys/odd"), system.number("none"), system.chosen("sys/odd")), (None, None, None));
    }
}
