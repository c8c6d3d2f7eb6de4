//! Rewriting of the database file when a database is opened.
//!
//! Owns: [`rewrite`]. Does not own: the file's format, which is redb's.
//!
//! If the sync of a commit fails, the kernel keeps the pages of the commit in its memory and regards them as written.
//! After a kill, the next open reads them there, and a sync at the open does not write them.
//!
//! A commit in two phases syncs its pages, then writes the header that names them, and syncs again. If the first sync
//! fails, no header names the pages; redb writes whole pages, so a later commit that uses the same ones writes them
//! again. If the second sync fails, only the header can be missing on the disk, and redb itself writes the header again
//! in each open and syncs it. So this needs no rewriting. All commits of a state behind a log are of this kind.
//!
//! A plain commit, that of a state which is synced per batch, writes pages and header together, with one sync. If that
//! fails, the next open finds the commit complete, and every later commit refers to pages that are not on the disk. The
//! file does not tell the pages of the last commit from others, so all of it is written again. This takes about as long
//! as redb takes to read the whole file, which it does after a kill in this mode. A database that was closed cleanly
//! ends with a commit in two phases.
//!
//! ```text
//! file := magic number 9 bytes | flags u8 | ..          4 in the flags: the last commit was in two phases
//! ```

use std::io;

use thalweg_disk::File;

use crate::files::write_again;

const FLAGS_AT: u64 = 9;
const IN_TWO_PHASES: u8 = 4;

/// Writes the database file again, and syncs it, if a failed sync could have left pages of its last commit unwritten.
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
