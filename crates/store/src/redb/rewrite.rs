//! Rewriting of the database file when a database is opened.
//!
//! Owns: [`rewrite`]. Does not own: the file's format, which is redb's.
//!
//! If the sync of a commit fails, the kernel keeps the pages of the commit in its memory and regards them as written.
//! After a kill, the next open reads these pages from the kernel's memory. A sync at that open does not write them to
//! the disk.
//!
//! A two-phase commit syncs its pages, then writes the header that refers to them, and syncs again. If the first sync
//! fails, no header refers to the pages. redb writes whole pages, so a later commit that reuses them writes them again.
//! If the second sync fails, only the header may be missing on the disk; redb rewrites and syncs the header at each
//! open. So two-phase commits need no rewriting here. All commits of a state behind a log are two-phase.
//!
//! A state that is synced per batch uses plain commits. A plain commit writes pages and header together, with one sync.
//! If the sync fails, the next open finds a complete commit, and later commits refer to pages that are not on the disk.
//! The file does not show which pages belong to the last commit, so the whole file is written again. This takes about
//! as long as redb's own read of the whole file, which an open after a kill needs in this mode. A clean close ends with
//! a two-phase commit.
//!
//! ```text
//! file := magic number 9 bytes | flags u8 | ..          4 in the flags: the last commit was in two phases
//! ```

use std::io;

use thalweg_disk::File;

use crate::files::write_again;

const FLAGS_AT: u64 = 9;
const IN_TWO_PHASES: u8 = 4;

/// Writes the database file again and syncs it, if a failed sync may have left pages of the last commit off the disk.
pub(super) fn rewrite(file: &dyn File) -> io::Result<()> {
    if file.len()? <= FLAGS_AT {
        // redb rejects such a file.
        return Ok(());
    }
    let mut flags = [0];
    file.read_exact_at(&mut flags, FLAGS_AT)?;
    if flags[0] & IN_TWO_PHASES != 0 {
        return Ok(());
    }
    write_again(file)
}
