//! `backup` and `restore`: snapshot files, and directories of them.
//!
//! Owns: the names of backup files, the choice between a full backup and an increment, and the check that each file of
//! a list continues the one before it. Does not own: the bytes of a snapshot (`thalweg_snapshot`), its download
//! (`session/snapshot`), or the restore of a directory (the engine).
//!
//! ```text
//! DIR/full-<lsn>.tws                    a full snapshot
//! DIR/increment-<since>-<lsn>.tws       changes since the newest earlier one
//! *.partial                             incomplete; the next backup removes it
//! ```
//! Invariant: a file gets its final name only after it is complete, on disk, and verified by reading it back. Every
//! `.tws` file is therefore good, unless it was damaged later. A backup never overwrites an existing one. Only their
//! owner can read backups. The names of the directories that a backup creates are on disk when it ends.

use std::{
    fs::{self, File},
    io::{self, BufReader},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use thalweg_engine::{
    BackendKind, Options,
    snapshot::{
        Compression, Part, PartKind, RestoreError, RestoreTo, SnapshotFile, SnapshotInfo, SnapshotReadError, Verified,
        chain, restore, verify,
    },
};
use thalweg_types::{Classified, Lsn, NodeId};

use super::migrate;
use crate::{
    args::TargetArgs,
    failure::{Exit, Failure},
    offline, permissions, private_dir, render,
    session::{Access, PartialFile, Session, SnapshotRequest},
    span::{StartTime, parse_since, show_time},
    unfinished_file::{self, UnfinishedFile},
};

const EXTENSION: &str = "tws";

/// Options of `backup`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "A backup shows the data at one point in time, while writes continue. Each chunk is checked, and the file is read\n\
                  back. An interrupted backup must be started again, and removes the FILE.*.partial of the first; a broken connection is resumed.\n\n\
                  Examples:\n  thalweg backup --to monday.tws\n  thalweg backup --to backups/                    # a full backup\n  \
                  thalweg backup --to backups/ --incremental      # changes since the last one\n  \
                  thalweg backup verify backups/\n  thalweg restore backups/ --data ./restored"
)]
pub(crate) struct Backup {
    #[command(subcommand)]
    pub action: Option<BackupAction>,
    /// A new file, or a directory of backups: an existing one, or a name that ends with /
    #[arg(long, value_name = "PATH")]
    pub to: Option<PathBuf>,
    /// Back up only the changes since the newest backup in the directory; all data if there is none
    #[arg(long)]
    pub incremental: bool,
    /// Compression: zstd, lz4 or none
    #[arg(long, default_value = "zstd", value_parser = compression, value_name = "METHOD")]
    pub compress: Compression,
    #[command(flatten)]
    pub place: TargetArgs,
}

/// Actions on existing backups.
#[derive(Subcommand, Debug)]
pub(crate) enum BackupAction {
    /// Read backups completely and check their contents
    Verify(BackupSources),
    /// List backups and the range that they can restore
    Show(BackupSources),
}

/// Arguments that name snapshot files or directories of backups.
#[derive(Args, Debug)]
pub(crate) struct BackupSources {
    /// Files, or directories of backups
    #[arg(required = true, value_name = "FROM")]
    pub from: Vec<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `restore`.
#[derive(Args, Debug)]
#[command(
    after_help = "The directory must be new or empty. It gets a new node that continues where the backup ends. The directory of an\n\
                  interrupted restore can't be opened; the same command starts the restore again.\n\n\
                  Examples:\n  thalweg restore backups/ --data ./restored\n  thalweg restore monday.tws --data ./restored --backend redb\n  \
                  thalweg restore backups/ --data ./before --to-time 2026-11-20T08:30:00Z\n  \
                  thalweg restore backups/ --data ./before --to-time 10m      # as of ten minutes ago"
)]
pub(crate) struct Restore {
    /// Files, or directories of backups
    #[arg(required = true, value_name = "FROM")]
    pub from: Vec<PathBuf>,
    /// The new directory
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Backend of the new directory: memory, lsm, redb or sqlite [default: lsm]
    #[arg(long, value_parser = migrate::backend)]
    pub backend: Option<BackendKind>,
    /// Restore only writes below this LSN
    #[arg(long, value_name = "LSN", conflicts_with = "to_time")]
    pub to_lsn: Option<u64>,
    /// Restore only writes until this time: 2026-11-20, 2026-11-20T08:30:00Z, or a span before now
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub to_time: Option<StartTime>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

fn compression(text: &str) -> Result<Compression, String> {
    Compression::from_name(text).ok_or_else(|| "use one of zstd, lz4, none".to_owned())
}

/// Runs `backup`: takes a backup into a file or a directory, or runs a subcommand.
pub(crate) fn run(args: &Backup) -> Result<(), Failure> {
    match &args.action {
        Some(BackupAction::Verify(from)) => return check(from),
        Some(BackupAction::Show(from)) => return show(from),
        None => {}
    }
    let to = args.to.as_deref().ok_or_else(|| Failure::usage("name the destination: --to FILE, or --to DIR/"))?;
    let ends_with_slash = to.as_os_str().as_encoded_bytes().ends_with(b"/");
    if to.is_dir() || ends_with_slash || (args.incremental && !to.exists()) {
        return Session::with(&args.place, Access::Read, |session| into_directory(args, session, to));
    }
    if args.incremental {
        return Err(Failure::usage(format!("{} is a file, and --incremental needs a directory", to.display())));
    }
    refuse_existing(to)?;
    let (path, verified) = Session::with(&args.place, Access::Read, |session| {
        let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let stem = to.file_name().unwrap_or(to.as_os_str()).to_string_lossy();
        take(args, session, None, (dir, &stem), &|_| Ok(Some(to.to_owned())))
    })?
    .ok_or_else(|| Failure::usage("nothing was written"))?;
    print_backup(args, &path, &verified)
}

fn refuse_existing(path: &Path) -> Result<(), Failure> {
    if path.exists() {
        return Err(Failure::new(Exit::Usage, "exists", format!("{} exists", path.display()))
            .then("a backup is never overwritten: name a new file, or a directory"));
    }
    Ok(())
}

fn into_directory(args: &Backup, session: &Session, dir: &Path) -> Result<(), Failure> {
    private_dir::create(dir).map_err(|error| Failure::file(dir, &error))?;
    let there = infos(&parts(&[dir.to_owned()])?)?;
    let newest = there.iter().max_by_key(|(_, info)| info.applied.lsn).map(|(_, info)| *info);
    let has_full = there.iter().any(|(_, info)| info.kind == PartKind::Full);
    let newest = newest.filter(|_| has_full);
    if args.incremental && newest.is_none() {
        render::note(&format!("{} has no full backup yet: taking one", dir.display()));
    }
    let node = there.first().map(|(_, info)| info.node);
    let name = |verified: &Verified| {
        check_follows(&there, verified)?;
        part_path(dir, node, &verified.info)
    };
    let partial = (dir, "backup");
    let mut covered = next_increment(&there);
    if let Some(newest) = newest {
        // An increment is also taken before a full backup. So every point in time up to the full backup can still be
        // restored.
        let mut taken = take(args, session, covered, partial, &name);
        if covered.is_some_and(|since| since < newest.applied.lsn)
            && let Err(failure) = &taken
            && is_out_of_reach(failure)
        {
            render::note(&format!("{}: the entries before the newest full backup stay missing", failure.message));
            taken = take(args, session, Some(newest.applied.lsn), partial, &name);
        }
        match taken {
            Ok(Some((path, verified))) => {
                covered = Some(verified.info.applied.lsn);
                print_backup(args, &path, &verified)?;
            }
            Ok(None) if args.incremental => return nothing_new(args, &newest),
            Ok(None) => {}
            Err(failure) if args.incremental => return Err(hint(failure)),
            Err(failure) if is_out_of_reach(&failure) => {
                covered = None;
                render::note(&failure.message);
            }
            Err(failure) => return Err(failure),
        }
        if args.incremental {
            return Ok(());
        }
    }
    let Some((path, full)) = take(args, session, None, partial, &name)? else {
        return Err(Failure::usage("the directory already has a full backup of this LSN"));
    };
    print_backup(args, &path, &full)?;
    // The node wrote entries between the increment and the full backup. The full backup has their effect but not the
    // entries, so a further increment stores them.
    let Some(since) = covered.filter(|since| *since < full.info.applied.lsn) else { return Ok(()) };
    match take(args, session, Some(since), partial, &name) {
        Ok(Some((path, verified))) => print_backup(args, &path, &verified),
        Ok(None) => Ok(()),
        Err(failure) => {
            render::note(&format!("the next increment begins at LSN {since}, before the full backup"));
            Err(failure)
        }
    }
}

/// Returns the LSN at which the next increment must begin, so that no entry is missing between the backups of a
/// directory; `None` if the directory has no full backup. Normally this is the end of the newest backup. If the newest
/// backup is a full one, and no increment contains the entries directly before its end, the next increment begins
/// earlier: at the end of the backup before the full one.
fn next_increment(there: &[(PathBuf, SnapshotInfo)]) -> Option<Lsn> {
    let fulls = there.iter().filter(|(_, info)| info.kind == PartKind::Full);
    let full = fulls.map(|(_, info)| info.applied.lsn).max()?;
    let increments = || there.iter().filter(|(_, info)| info.kind == PartKind::Increment);
    let newest = there.iter().map(|(_, info)| info.applied.lsn).max()?;
    let before = there.iter().map(|(_, info)| info.applied.lsn).filter(|lsn| *lsn < full).max();
    let is_covered = increments().any(|(_, info)| info.since < full && full <= info.applied.lsn);
    Some(before.filter(|_| newest == full && !is_covered).unwrap_or(newest))
}

/// Returns true if no increment can be taken: the node no longer has the entries since the last backup, or never had
/// them.
fn is_out_of_reach(failure: &Failure) -> bool {
    matches!(&*failure.code, "compacted" | "past_end")
}

/// Checks that an increment has all entries after the backup that it continues. A node of a cluster may have taken its
/// state from another node in between. Its log then lacks some of these entries.
fn check_follows(there: &[(PathBuf, SnapshotInfo)], new: &Verified) -> Result<(), Failure> {
    let Verified { info, totals, .. } = new;
    let is_before = |other: &&(PathBuf, SnapshotInfo)| other.1.applied.lsn == info.since;
    let Some((path, before)) = there.iter().find(is_before).filter(|_| info.kind == PartKind::Increment) else {
        return Ok(());
    };
    let (from, to) = (before.applied.index, info.applied.index);
    if from.0.saturating_add(totals.entries) >= to.0 {
        return Ok(());
    }
    let message = format!(
        "{} ends with entry {from}, and the node's log lacks some of the entries up to {to}, because it took its state from \
         another node in between",
        path.display()
    );
    Err(Failure::new(Exit::NotFound, "compacted", message))
}

/// Returns the path for a new backup file in a directory of backups; `None` if the directory already contains
/// everything that the new backup contains.
fn part_path(dir: &Path, node: Option<NodeId>, info: &SnapshotInfo) -> Result<Option<PathBuf>, Failure> {
    if let Some(node) = node.filter(|node| *node != info.node) {
        let message =
            format!("{} holds backups of node {:016x}, and this is node {:016x}", dir.display(), node.0, info.node.0);
        return Err(Failure::new(Exit::Usage, "other_node", message).then("back up each node into its own directory"));
    }
    let lsn = info.applied.lsn;
    let name = match info.kind {
        PartKind::Full => format!("full-{lsn:020}.{EXTENSION}"),
        PartKind::Increment if info.since == lsn => return Ok(None),
        PartKind::Increment => format!("increment-{:020}-{lsn:020}.{EXTENSION}", info.since),
    };
    Ok(Some(dir.join(name)).filter(|path| !path.exists()))
}

fn nothing_new(args: &Backup, since: &SnapshotInfo) -> Result<(), Failure> {
    let lsn = since.applied.lsn;
    if args.place.json {
        return render::line(&json!({ "file": null, "lsn": lsn.0 }).to_string());
    }
    render::line(&format!("nothing was written since LSN {lsn}: the backup is up to date"))
}

fn hint(failure: Failure) -> Failure {
    if is_out_of_reach(&failure) {
        return failure.then("take a full backup: the same command without --incremental");
    }
    failure
}

/// Takes a snapshot, verifies it, and renames the file to the path that `name` returns. If `name` returns `None`,
/// removes the file and returns `None`. Until the rename the file is in the directory `dir`, and its name begins with
/// `stem`.
fn take(
    args: &Backup,
    session: &Session,
    since: Option<Lsn>,
    (dir, stem): (&Path, &str),
    name: &dyn Fn(&Verified) -> Result<Option<PathBuf>, Failure>,
) -> Result<Option<(PathBuf, Verified)>, Failure> {
    for swept in unfinished_file::sweep(dir, stem) {
        render::note(&format!("{swept} was not finished, and is removed: taking the backup again"));
    }
    let partial = UnfinishedFile::create(dir, stem).map_err(|error| Failure::file(dir, &error))?;
    let verified = take_partial(args, session, since, &partial)?;
    let Some(path) = name(&verified)? else { return Ok(None) };
    refuse_existing(&path)?;
    partial.finish(&path).map_err(|error| Failure::file(&path, &error))?;
    Ok(Some((path, verified)))
}

fn take_partial(
    args: &Backup,
    session: &Session,
    since: Option<Lsn>,
    partial: &UnfinishedFile,
) -> Result<Verified, Failure> {
    let fault = |error: io::Error| Failure::file(partial.path(), &error);
    let file = partial.handle().map(SnapshotFile::new).map_err(fault)?;
    let mut out = PartialFile { path: partial.path().to_owned(), file };
    let bar = bar("taking", None, args.place.json);
    let mut progress = |bytes| bar.set_position(bytes);
    let mut ask = SnapshotRequest { since, compression: args.compress, progress: &mut progress };
    let taken = session.snapshot(&mut ask, &mut out);
    bar.finish_and_clear();
    taken?;
    out.file.finish().map_err(fault)?;
    verify_file(partial.path(), args.place.json).map_err(|error| of_part(partial.path(), &error))
}

fn print_backup(args: &Backup, path: &Path, verified: &Verified) -> Result<(), Failure> {
    if args.place.json {
        return render::line(&part_json(path, verified).to_string());
    }
    let what = match verified.info.kind {
        PartKind::Full => "full backup",
        PartKind::Increment => "increment",
    };
    render::line(&format!(
        "{}: {what} up to LSN {}, revision {}: {} in {}, checked",
        path.display(),
        verified.info.applied.lsn,
        verified.info.applied.revision,
        contents(verified),
        render::bytes(verified.bytes),
    ))
}

fn contents(verified: &Verified) -> String {
    let totals = &verified.totals;
    let count = match verified.info.kind {
        PartKind::Full => render::counted(totals.rows, "row", "rows"),
        PartKind::Increment => render::counted(totals.entries, "entry", "entries"),
    };
    format!("{count} of {}", render::bytes(totals.bytes()))
}

fn info_json(path: &Path, info: &SnapshotInfo) -> Value {
    json!({
        "file": path.display().to_string(),
        "kind": kind_name(info.kind),
        "node": format!("{:016x}", info.node.0),
        "since": info.since.0,
        "lsn": info.applied.lsn.0,
        "revision": info.applied.revision.0,
        "time": show_time(info.applied.time.0),
    })
}

fn part_json(path: &Path, verified: &Verified) -> Value {
    let mut object = info_json(path, &verified.info);
    let totals = &verified.totals;
    let more = json!({
        "rows": totals.rows, "entries": totals.entries, "content_bytes": totals.bytes(),
        "bytes": verified.bytes, "chunks": verified.chunks, "verified": true,
    });
    if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
        object.extend(more);
    }
    object
}

fn kind_name(kind: PartKind) -> &'static str {
    match kind {
        PartKind::Full => "full",
        PartKind::Increment => "increment",
    }
}

/// Returns the backup files that the user means: the named files, and the files in the named directories.
fn parts(from: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in from {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let fault = |error: io::Error| Failure::file(path, &error);
        for entry in fs::read_dir(path).map_err(fault)? {
            let found = entry.map_err(fault)?.path();
            if found.extension().is_some_and(|extension| extension == EXTENSION) {
                files.push(found);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn infos(files: &[PathBuf]) -> Result<Vec<(PathBuf, SnapshotInfo)>, Failure> {
    let info = |path: &PathBuf| Part::file(path).info().map_err(|error| of_part(path, &error));
    files.iter().map(|path| Ok((path.clone(), info(path)?))).collect()
}

fn of_part(path: &Path, error: &SnapshotReadError) -> Failure {
    if let SnapshotReadError::Io(error) = error {
        return Failure::file(path, error);
    }
    let mut failure = Failure::of(error);
    failure.message = format!("{}: {}", path.display(), failure.message);
    failure
}

fn verify_file(path: &Path, json: bool) -> Result<Verified, SnapshotReadError> {
    let file = File::open(path)?;
    let bar = bar("checking", Some(file.metadata()?.len()), json);
    let verified = verify(bar.wrap_read(BufReader::with_capacity(256 * 1024, file)));
    bar.finish_and_clear();
    verified
}

/// Runs `backup verify`: checks every backup file. Then checks that the files form a chain from a full backup to the
/// newest increment.
fn check(args: &BackupSources) -> Result<(), Failure> {
    let files = parts(&args.from)?;
    let mut bad = None;
    for path in &files {
        match verify_file(path, args.json) {
            Ok(verified) if args.json => render::line(&part_json(path, &verified).to_string())?,
            Ok(verified) => render::line(&format!(
                "{}: good, {} up to LSN {}",
                path.display(),
                contents(&verified),
                verified.info.applied.lsn
            ))?,
            Err(error) => {
                let failure = of_part(path, &error);
                render::failure(&failure, args.json);
                bad.get_or_insert(failure);
            }
        }
    }
    if let Some(first) = bad {
        let (message, next) = match first.exit {
            Exit::NotFound => ("some backups do not exist", "name files of backups, or a directory with backups"),
            _ => (
                "some backups are damaged",
                "the backups before the first damaged one can still be restored with --to-lsn",
            ),
        };
        return Err(Failure::new(first.exit, first.code, message).then(next));
    }
    let parts: Vec<_> = files.iter().map(Part::file).collect();
    chain(&parts, RestoreTo::End).map_err(|error| of_restore(&error))?;
    Ok(())
}

/// Runs `backup show`: lists backups, and the range of LSNs and times that they can restore.
fn show(args: &BackupSources) -> Result<(), Failure> {
    let all = infos(&parts(&args.from)?)?;
    if all.is_empty() && !args.json {
        render::note("no backups yet: `thalweg backup --to DIR/` takes one");
        return Ok(());
    }
    if args.json {
        return all.iter().try_for_each(|(path, info)| render::line(&info_json(path, info).to_string()));
    }
    let rows = all.iter().map(|(path, info)| {
        let size = fs::metadata(path).map_or(0, |metadata| metadata.len());
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let kind = kind_name(info.kind).to_owned();
        let (since, lsn, time) = (info.since.to_string(), info.applied.lsn.to_string(), show_time(info.applied.time.0));
        vec![name.into_owned(), kind, since, lsn, info.applied.revision.to_string(), time, render::bytes(size)]
    });
    render::line(&render::table(&["file", "kind", "since", "lsn", "revision", "last entry", "size"], rows))
}

/// Runs `restore`: creates a new directory from backups.
pub(crate) fn run_restore(args: &Restore) -> Result<(), Failure> {
    permissions::only_for_the_owner();
    let parts: Vec<_> = parts(&args.from)?.iter().map(Part::file).collect();
    let to = match (args.to_lsn, args.to_time) {
        (Some(lsn), _) => RestoreTo::Lsn(Lsn(lsn)),
        (None, Some(time)) => RestoreTo::Time(time.time()),
        (None, None) => RestoreTo::End,
    };
    let options = Options { backend: args.backend, ..offline::options()? };
    let bar = bar("restoring", None, args.json);
    let restored = restore(&args.data, &parts, to, &options, &mut |progress| {
        bar.set_position(progress.totals.bytes());
        bar.set_message(format!("part {} of {}", (progress.parts + 1).min(progress.of), progress.of));
    });
    bar.finish_and_clear();
    let restored = restored.map_err(|error| of_restore(&error))?;
    if restored.removed_unfinished && !args.json {
        render::note("the files of an unfinished earlier restore were removed first");
    }
    let time = show_time(restored.time.0);
    if args.json {
        let object = json!({
            "data": args.data.display().to_string(), "backend": restored.backend.name(), "parts": restored.parts,
            "lsn": restored.lsn.0, "revision": restored.revision.0, "time": time,
            "rows": restored.totals.rows, "entries": restored.totals.entries, "bytes": restored.totals.bytes(),
            "node": format!("{:016x}", restored.node.0), "from_node": format!("{:016x}", restored.from.0),
        });
        return render::line(&object.to_string());
    }
    render::line(&format!(
        "{}: restored from {} up to LSN {}, revision {}, {time}: {}, {}, {}",
        args.data.display(),
        render::counted(restored.parts as u64, "backup", "backups"),
        restored.lsn,
        restored.revision,
        render::counted(restored.totals.rows, "row", "rows"),
        render::counted(restored.totals.entries, "entry", "entries"),
        render::bytes(restored.totals.bytes()),
    ))
}

const SHOW_BACKUPS: &str = "`thalweg backup show` lists the existing backups";

fn of_restore(error: &RestoreError) -> Failure {
    let failure = Failure::of(error);
    match error {
        RestoreError::Part { error: SnapshotReadError::Io(cause), .. } if cause.kind() == io::ErrorKind::NotFound => {
            Failure { exit: Exit::NotFound, ..failure }
        }
        RestoreError::TooLate { .. } => failure.then(SHOW_BACKUPS),
        RestoreError::TooEarly { lsn, time, .. } => {
            let oldest = format!("the oldest is at LSN {lsn}, {}", show_time(time.0));
            let message = format!("no full backup reaches back that far: {oldest}");
            Failure { message, ..failure }.then(SHOW_BACKUPS)
        }
        RestoreError::Missing { from, .. } => {
            failure.then(format!("find that backup, or restore the earlier ones with --to-lsn {from}"))
        }
        _ if error.code() == "disk_full" => failure.then("free disk space, then start the restore again"),
        _ => failure,
    }
}

fn bar(what: &'static str, length: Option<u64>, json: bool) -> ProgressBar {
    let template = match length {
        Some(_) => {
            "{elapsed_precise} {prefix:9} {wide_bar} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}"
        }
        None => "{elapsed_precise} {prefix:9} {spinner} {binary_bytes}, {binary_bytes_per_sec} {msg}",
    };
    let bar = render::progress_bar(length, template, json);
    bar.set_prefix(what);
    bar
}
