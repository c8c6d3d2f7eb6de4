//! Opens a log: lists the files, finds the end of the log, decides whether to open the log, makes the disk match the
//! decision, and writes a batch without records that begins a new run of the process.
//!
//! Owns: the order of these steps. No byte is written before the decision to open is made.

use std::{io, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use thalweg_disk::{Disk, Pacer};
use thalweg_types::{Clock, Generation};

use crate::{
    apply_survey::apply_survey,
    errors::{Corruption, DiskFault, Explain, OpenError},
    format::{BatchKind, SegmentHeader, SegmentState},
    inventory::{FoundSegment, Inventory},
    options::{LogOptions, Recovery, Repair},
    prepare::{Prepared, SegmentPool, Slot, write_spare_header},
    segment::{Extent, Segment, SegmentKey, Table},
    shared::Shared,
    survey::{Depth, Survey},
    writer_role::{Core, write_live_header},
};

/// Opens the log in `dir` without starting the background threads. If another handle of this process has the log open,
/// the call waits for up to `patience`. The preparation of segments is paced by `pacer`.
pub(crate) fn open(
    disk: Arc<dyn Disk>,
    dir: &str,
    options: LogOptions,
    (clock, pacer): (Arc<dyn Clock>, Arc<Pacer>),
    (seed, patience): (u64, Duration),
) -> Result<(Shared, Recovery), OpenError> {
    options.check()?;
    make_dir(&*disk, dir)?;
    let guard = disk.lock_within(&format!("{dir}/LOCK"), patience).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => OpenError::Locked { dir: dir.to_owned() },
        _ => DiskFault::new("lock", dir, &error).into(),
    })?;
    let inventory = Inventory::take(&*disk, dir)?;
    let mut given_up = unreadable(&inventory, options.repair)?;
    let depth = match options.repair {
        Repair::Refuse => Depth::Tail,
        Repair::CutAtCorruption => Depth::Whole,
    };
    let survey = if inventory.live.is_empty() { None } else { Some(Survey::of(&inventory, depth)?) };
    if let Some(corruption) = survey.as_ref().and_then(|survey| survey.corruption.clone()) {
        if options.repair == Repair::Refuse {
            return Err(corruption.into());
        }
        given_up.push(corruption);
    }
    for path in &inventory.unfinished {
        disk.remove(path).explain("remove", path)?;
    }

    let mut generation = inventory.generation;
    if let Some(survey) = &survey {
        generation = apply_survey(survey, seed, generation)?;
    }
    write_spares_again(&*disk, dir, &inventory.spares)?;
    let slots = inventory.slots.clone();
    let clocks = (Arc::clone(&clock), pacer);
    let spares = Arc::new(SegmentPool::new(Arc::clone(&disk), clocks, dir, &options, seed, generation, slots));
    let set_aside: Vec<String> = inventory.unreadable.iter().map(|file| file.corruption.file.clone()).collect();
    let mut unused: Vec<Slot> = inventory.spares.into_iter().map(|found| found.slot).collect();
    let (table, core, mut recovery) = match survey {
        Some(survey) => {
            let recovery = report(&survey, &given_up);
            unused.extend(survey.cut.iter().map(|found| found.slot.clone()));
            let (table, core) = resume(survey, &spares)?;
            (table, core, recovery)
        }
        None => {
            let (table, core) = begin(&mut unused, &options, &spares)?;
            (
                table,
                core,
                Recovery { clean: given_up.is_empty(), repaired: describe_repair(&given_up), ..Recovery::default() },
            )
        }
    };
    recovery.segments = table.0.len() as u32;
    for slot in unused {
        spares.return_file(slot);
    }
    let durable = core.next;
    let shared = Shared::new(options, clock, spares, ArcSwap::from_pointee(table), core, durable, guard);
    shared.truncations.read(&shared.table.load())?;
    mark_opened(&shared)?;
    rename_discarded(&*disk, dir, &set_aside)?;
    shared.segment_pool.check_free_space();
    Ok((shared, recovery))
}

fn make_dir(disk: &dyn Disk, dir: &str) -> Result<(), OpenError> {
    disk.create_dir(dir).explain("create", dir)?;
    let parent = dir.rsplit_once('/').map_or("", |(parent, _)| parent);
    disk.sync_dir(parent).explain("sync", parent)?;
    Ok(())
}

/// Makes the headers and the names of prepared segments durable, before these segments can hold records.
///
/// The process that prepared a segment may have been killed before it synced the segment's header or name. Without this
/// function, a power loss could bring back the old header, and with it the old records. After a failed sync, a later
/// sync proves nothing about data that was not changed since. So the function writes both headers again, and renames
/// each file twice. A crash between the renames leaves a `.tmp` file, which the next open removes. Removing it is safe,
/// because no decision about the end of the log depends on a prepared segment any more.
fn write_spares_again(disk: &dyn Disk, dir: &str, spares: &[FoundSegment]) -> Result<(), DiskFault> {
    for spare in spares {
        let (path, unfinished) = (spare.path(), format!("{dir}/{:08}.tmp", spare.slot.slot));
        let written = write_spare_header(&spare.slot, spare.header.id, spare.header.generation);
        let written = written.and_then(|()| spare.slot.file.sync_data());
        let renamed = || disk.rename(path, &unfinished).explain("rename", path);
        match written.explain("write", path).and_then(|()| renamed()) {
            // A log on a full disk must open. The sync covers the names that a killed process has left.
            Err(fault) if fault.is_full() => break,
            renamed => renamed?,
        }
        disk.rename(&unfinished, path).explain("rename", &unfinished)?;
    }
    if spares.is_empty() { Ok(()) } else { disk.sync_dir(dir).explain("sync", dir) }
}

/// Renames segment files that a repair discarded, so that the next open needs no repair. Runs last: all other
/// changes of the repair are durable by then.
fn rename_discarded(disk: &dyn Disk, dir: &str, files: &[String]) -> Result<(), OpenError> {
    for path in files {
        disk.rename(path, &format!("{path}.bad")).explain("rename", path)?;
    }
    if !files.is_empty() {
        disk.sync_dir(dir).explain("sync", dir)?;
    }
    Ok(())
}

/// Reports the segment files without a valid header: either another version of the program wrote them, or they are
/// corrupt.
fn unreadable(inventory: &Inventory, repair: Repair) -> Result<Vec<Corruption>, OpenError> {
    let mut given_up = Vec::new();
    for file in &inventory.unreadable {
        if let Some(version) = file.version {
            return Err(OpenError::Version { file: file.corruption.file.clone(), version });
        }
        if repair == Repair::Refuse {
            return Err(file.corruption.clone().into());
        }
        given_up.push(file.corruption.clone());
    }
    Ok(given_up)
}

fn describe_repair(given_up: &[Corruption]) -> Option<String> {
    (!given_up.is_empty()).then(|| given_up.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

fn report(survey: &Survey, given_up: &[Corruption]) -> Recovery {
    Recovery {
        cut_bytes: survey.cut_bytes,
        attested: survey.attested.min(survey.end()),
        end: survey.end(),
        segments: 0,
        clean: survey.clean && given_up.is_empty(),
        repaired: describe_repair(given_up),
    }
}

/// Continues an existing log at its end, which the search at open (`survey`) has found.
fn resume(survey: Survey, spares: &Arc<SegmentPool>) -> Result<(Table, Core), OpenError> {
    let mut chain = 0;
    let mut segments = Vec::with_capacity(survey.kept.len());
    for kept in survey.kept {
        chain = kept.chain;
        let key = kept.found.key();
        let base = (kept.found.header.base, kept.found.header.base_chain);
        let segment = Segment::new(kept.found.slot, key, base, kept.extent, Arc::clone(spares));
        segment.install_index(kept.index);
        segment.seal();
        segments.push(Arc::new(segment));
    }
    let active = segments.last().expect("a survey keeps at least one segment");
    active.reopen();
    let mapping = active.file.map(active.segment_bytes.into()).explain("map", &active.path)?;
    let core = Core::new(Arc::clone(active), mapping, chain);
    Ok((Table(segments), core))
}

/// Starts a new log, which gets its first segment.
fn begin(unused: &mut Vec<Slot>, options: &LogOptions, spares: &Arc<SegmentPool>) -> Result<(Table, Core), OpenError> {
    let at = unused.iter().position(|slot| slot.segment_bytes == options.segment_bytes);
    let prepared = match at {
        Some(at) => spares.recycle(unused.swap_remove(at))?,
        None => spares.create_now()?,
    };
    spares.fill();
    let Prepared { slot, id, generation, mut mapping } = prepared;
    let header = SegmentHeader {
        state: SegmentState::Live,
        id,
        generation,
        base: options.first_lsn,
        base_chain: 0,
        segment_bytes: slot.segment_bytes,
        slot: slot.slot,
        previous: Generation::ZERO,
    };
    write_live_header(&mut *mapping, &header);
    let key = SegmentKey::new(id, generation, slot.segment_bytes);
    let first = options.first_lsn;
    let segment = Arc::new(Segment::new(slot, key, (first, 0), Extent::empty(first), Arc::clone(spares)));
    let core = Core::new(Arc::clone(&segment), mapping, 0);
    Ok((Table(vec![segment]), core))
}

/// Writes and syncs a batch without records (the marker of a new run). From now on, the `Closed` marker of an earlier
/// run has no effect, and all records before the new marker are attested as durable. The sync also covers the bytes of
/// this segment that recovery has written again.
fn mark_opened(shared: &Shared) -> Result<(), OpenError> {
    let mut core = shared.core();
    let next = core.next;
    // In a segment without room for the marker, the `Closed` marker stays the last batch until the next record, which
    // begins another segment.
    let marked = core.mark(BatchKind::Opened, next);
    marked.explain("write", &core.active.path)?;
    core.active.file.sync_data().explain("sync", &core.active.path)?;
    Ok(())
}
