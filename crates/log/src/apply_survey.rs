//! Repairs the end of a log when it is opened: makes the disk match the result of a survey, the search for the end of
//! the log. Runs before the log is served.
//!
//! Owns: the writes of recovery. A record is *attested* if a later batch header reports that it was durable. The writes
//! depend only on which records are attested, so repeating them after a crash in between gives the same result.
//! Attested records are only rewritten unchanged. A *marker* is a batch without records; its header attests the records
//! before it.
//!
//! 1. Every batch that no successful fsync is known to cover is rewritten unchanged. After a failed fsync, a page can
//!    be clean in the page cache but missing on the disk. These batches are those beyond the attested LSN, and the
//!    markers at this LSN.
//! 2. The unused end of the last segment is zeroed. Otherwise an old batch that is valid at its position could reappear
//!    after the end of a later, shorter log.
//! 3. Every kept segment before the last one gets a footer if it has none, or if a failed fsync may have left its
//!    footer in the page cache only. Without a footer, a later survey could not tell if the next segment was freed or
//!    lost, and would end the log there.
//! 4. The files that steps 1 to 3 have changed are synced.
//! 5. Segments after the end of the log get a new id and are synced. The new id makes all batches in them invalid.
//!
//! After a clean close, steps 1 and 3 run as after a crash, but step 1 has to rewrite only a few markers of 48 bytes.
//! The marker `Closed` proves that all records before it are on the disk, because it is written after their sync. It
//! does not prove that the marker itself is on the disk: after a failed fsync, the page cache shows the marker until a
//! power loss, which would then leave a hole before the batches of the next run. The next process cannot find out if
//! that fsync succeeded, so every open rewrites the batches that are not attested. After a clean close these need no
//! sync of their own, because the marker `Opened` goes to the same file and is synced before the log is served. A power
//! loss before that sync leaves a log that ends with its last record. Step 2 is left out after a clean close, because
//! nothing was written after the marker `Closed`.

use std::io;

use thalweg_disk::File;
use thalweg_types::{Generation, Lsn};

use crate::{
    cursor::{CHUNK_BYTES, Window, read_header},
    errors::{DiskFault, Explain},
    format::{BatchKind, DATA_START, Footer, HEADER_BLOCK_BYTES, SegmentId},
    prepare::write_spare_header,
    survey::{Survey, Surveyed},
};

const PIECE_BYTES: u32 = 64 * 1024;

/// Makes the disk match the result of a survey (the search for the end of the log). `generation` is the highest segment
/// generation in use before the call; the function returns the highest one in use afterwards.
pub(crate) fn apply_survey(survey: &Survey, seed: u64, mut generation: Generation) -> Result<Generation, DiskFault> {
    let last = survey.kept.len() - 1;
    // A synced record of a segment implies that all earlier segments were synced, with their footers.
    let first_unsynced = survey.kept.iter().rposition(|kept| kept.found.header.base < survey.attested).unwrap_or(0);
    for (at, kept) in survey.kept.iter().enumerate() {
        let is_synced = at < first_unsynced;
        if is_synced && kept.sealed {
            continue;
        }
        let from = if is_synced { kept.extent.written } else { first_unattested(kept, survey.attested)? };
        if at == last || from < kept.extent.written {
            rewrite(kept, from)?;
        }
        if at < last {
            write_footer(kept)?;
        } else if survey.clean {
            // The marker of the new run is written to this file, and synced with it.
            continue;
        } else {
            zero(&*kept.found.slot.file, kept.extent.written, kept.found.header.segment_bytes)
                .explain("write", kept.found.path())?;
        }
        kept.found.slot.file.sync_data().explain("sync", kept.found.path())?;
    }
    for found in &survey.cut {
        generation = generation.next();
        write_spare_header(&found.slot, SegmentId::draw(seed, generation), generation)
            .and_then(|()| found.slot.file.sync_data())
            .explain("void", found.path())?;
    }
    Ok(generation)
}

/// Returns the byte position of the first batch that may not be durable. All records below the LSN `attested` are known
/// to be durable. So this is the first batch that has a record at or above `attested`, or that is a marker (a batch
/// without records) at this LSN. Starts reading at the last batch of the sparse index that is below `attested`.
fn first_unattested(kept: &Surveyed, attested: Lsn) -> Result<u32, DiskFault> {
    let key = kept.found.key();
    let until = kept.extent.written;
    let mut window = Window::new(kept.found.slot.file.clone(), until, CHUNK_BYTES);
    let mut at = match kept.index.partition_point(|(first, _)| *first < attested) {
        0 => DATA_START,
        below => kept.index[below - 1].1,
    };
    while at < until {
        let header = read_header(&mut window, key, at).explain("read", kept.found.path())?;
        let Ok(header) = header else { break };
        if header.next() > attested || (header.kind != BatchKind::Records && header.first >= attested) {
            break;
        }
        at += header.total_bytes();
    }
    Ok(at)
}

/// Rewrites the segment's headers, and its batches from byte position `from` on, with unchanged content.
fn rewrite(kept: &Surveyed, from: u32) -> Result<(), DiskFault> {
    let file = &*kept.found.slot.file;
    let block = kept.found.header.encode_block();
    let again = || -> io::Result<()> {
        file.write_all_at(&block, 0)?;
        file.write_all_at(&block, HEADER_BLOCK_BYTES.into())?;
        let mut piece = vec![0; PIECE_BYTES as usize];
        let mut at = from;
        while at < kept.extent.written {
            let len = PIECE_BYTES.min(kept.extent.written - at);
            let piece = &mut piece[..len as usize];
            file.read_exact_at(piece, at.into())?;
            file.write_all_at(piece, at.into())?;
            at += len;
        }
        Ok(())
    };
    again().explain("rewrite", kept.found.path())
}

fn write_footer(kept: &Surveyed) -> Result<(), DiskFault> {
    let key = kept.found.key();
    let footer = Footer {
        end: kept.extent.written,
        chain: kept.chain,
        first: kept.found.header.base,
        next: kept.extent.next,
        first_time: kept.extent.first_time,
        last_time: kept.extent.last_time,
        truncates: kept.extent.truncates,
    };
    let bytes = footer.encode(key.id, key.limit);
    kept.found.slot.file.write_all_at(&bytes, key.limit.into()).explain("write", kept.found.path())
}

fn zero(file: &dyn File, from: u32, until: u32) -> io::Result<()> {
    let zeroes = [0; PIECE_BYTES as usize];
    let mut at = from;
    while at < until {
        // Pieces end at multiples of their size, so that all pieces but the first are whole pages.
        let len = (PIECE_BYTES - at % PIECE_BYTES).min(until - at);
        file.write_all_at(&zeroes[..len as usize], at.into())?;
        at += len;
    }
    Ok(())
}
