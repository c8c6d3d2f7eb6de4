//! Mounts, as `/proc/self/mountinfo` lists them.

use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

use serde::{Serialize, Serializer};

use crate::System;

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// Directory at which the file system is mounted.
    #[serde(serialize_with = "lossy")]
    pub point: PathBuf,
    /// Type of the file system, such as `ext4`.
    pub kind: String,
    /// Source of the file system: a device, or for example `overlay` or `server:/export`.
    pub source: String,
    /// Options of the mount and of the file system, each once.
    pub options: Vec<String>,
}

/// Serializes a path as text. Bytes that are not UTF-8 are replaced.
fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

impl Mount {
    /// Returns true if an option has this name, such as `discard` or `data` in `data=journal`.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.options.iter().any(|option| option.split('=').next() == Some(name))
    }

    /// Returns true if one of the options is exactly this text, such as `data=journal`.
    #[must_use]
    pub fn is(&self, option: &str) -> bool {
        self.options.iter().any(|has| has == option)
    }
}

/// Returns the mount that contains the directory with this canonical path: the one with the longest mount point. If
/// several have this mount point, the last one hides the others.
#[must_use]
pub fn mount_of(system: &System, canonical: &Path) -> Option<Mount> {
    let text = system.text("proc/self/mountinfo")?;
    let mounts = text.lines().filter_map(parse).filter(|mount| canonical.starts_with(&mount.point));
    // For equal lengths, `max_by_key` returns the last one.
    mounts.max_by_key(|mount| mount.point.as_os_str().len())
}

/// Parses a line of `/proc/self/mountinfo`: `ID PARENT DEVICE ROOT POINT OPTIONS [TAG...] - KIND SOURCE OPTIONS`.
fn parse(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(4);
    let (point, options) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, source, more) = (right.next()?, right.next()?, right.next().unwrap_or_default());
    let mut all: Vec<String> = Vec::new();
    for option in options.split(',').chain(more.split(',')).filter(|option| !option.is_empty()) {
        if !all.iter().any(|has| has == option) {
            all.push(option.to_owned());
        }
    }
    let text = |escaped: &str| String::from_utf8_lossy(&unescape(escaped)).into_owned();
    Some(Mount {
        point: PathBuf::from(OsString::from_vec(unescape(point))),
        kind: text(kind),
        source: text(source),
        options: all,
    })
}

/// Decodes the kernel's escapes in a path: a backslash and three octal digits.
fn unescape(text: &str) -> Vec<u8> {
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::with_capacity(text.len()), 0);
    while at < bytes.len() {
        let code = (bytes[at] == b'\\').then(|| text.get(at + 1..at + 4)).flatten();
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::with_files;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
23 22 0:40 / /data rw,noatime - xfs /dev/sdb1 rw,nobarrier
24 22 0:41 / /data rw,noatime - btrfs /dev/sdc rw,space_cache=v2
25 22 0:42 / /with\\040blank rw - tmpfs tmpfs rw,size=4k
bad line
";

    #[test]
    fn the_longest_and_last_mount_point_counts() {
        let (_root, system) = with_files(&[("proc/self/mountinfo", MOUNTS)]);
        let of = |path: &str| mount_of(&system, Path::new(path)).unwrap();
        assert_eq!((of("/home").kind.as_str(), of("/home").source.as_str()), ("ext4", "/dev/vda"));
        assert_eq!(of("/data/db").kind, "btrfs", "the later mount covers the earlier one");
        assert_eq!(of("/database").kind, "ext4", "a name that only begins alike is another directory");
        assert_eq!(of("/with blank/db").kind, "tmpfs");
        assert!(of("/data").has("space_cache") && of("/data").is("noatime") && !of("/data").has("nobarrier"));
    }

    #[test]
    fn odd_escapes_stay() {
        for (text, bytes) in
            [("a\\040b", &b"a b"[..]), ("\\", b"\\"), ("\\04", b"\\04"), ("\\999", b"\\999"), ("ü\\", "ü\\".as_bytes())]
        {
            assert_eq!(unescape(text), bytes, "{text}");
        }
    }
}
