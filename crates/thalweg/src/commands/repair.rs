//! `cluster repair`: replaces the state of a stopped member by a snapshot of another member.
//!
//! Owns: the order of the steps, and the check that the server belongs to the same cluster. Does not own: the install
//! itself. It is the same as for a member that lacks log entries (`Database::reinstall`).
//!
//! The node's votes and log are kept. So the node cannot vote twice in a term, and still has all entries that it has
//! acknowledged. The snapshot contains only committed entries, like the state of every member.
//!
//! Invariant: the directory keeps its former state until the last step, which is atomic.

use std::{
    io::{self, BufReader, Seek as _},
    path::Path,
    time::Duration,
};

use serde_json::json;
use thalweg_engine::{
    Create, Database, MemberIdentity, Options, RepairNote,
    snapshot::{Compression, InstallError, Installed, SnapshotFile},
};
use thalweg_types::Classified;

use crate::{
    args::ServerArgs,
    failure::{Exit, Failure},
    offline, permissions, render,
    session::{PartialFile, Session, SnapshotRequest},
    unfinished_file::{self, UnfinishedFile},
};

/// Beginning of the temporary name of the snapshot's file, in the repaired directory.
const STEM: &str = "repair";

/// Runs `cluster repair` on the stopped member's directory `data`, with a snapshot of the member that `place` names.
pub(super) fn repair(data: &Path, place: &ServerArgs) -> Result<(), Failure> {
    permissions::only_for_the_owner();
    let session = Session::of_server(place)?;
    let options = Options {
        create: Create::Never,
        maintenance_interval: Duration::ZERO,
        scrub_interval: Duration::ZERO,
        ..offline::options()?
    };
    let database = Database::open_member(data, options, MemberIdentity::Existing).map_err(unopened)?;
    check_cluster(&database, &session)?;
    let installed = install(&database, &session, data, place.json)?;
    // The repair that the note may request is done now. Clearing the note lets the node repair itself again later,
    // without an operator.
    database.note_repair(&RepairNote::default()).map_err(|error| Failure::file(data, &error))?;
    database.close().map_err(|error| Failure::of(&error))?;
    let (from, index, rows) = (format!("{:016x}", installed.from.0), installed.applied.index.0, installed.totals.rows);
    let object = json!({ "from": from, "index": index, "rows": rows, "leftover": installed.leftover });
    render::print_result(&object, place.json, || {
        let rows = render::counted(rows, "row", "rows");
        format!("{} has the state of node {from} up to entry {index}, {rows}; start the node again", data.display())
    })
}

fn unopened(error: thalweg_engine::OpenError) -> Failure {
    let failure = Failure::of(&error);
    match error.code() {
        "locked" => failure.then("stop the server of this directory first"),
        _ => failure.then(
            "if the log or the state is damaged, replace the node: `thalweg cluster remove` on another member, then start a \
             new node with an empty directory and --join",
        ),
    }
}

/// Checks that the server is another member of the cluster to which the directory belongs.
fn check_cluster(database: &Database, session: &Session) -> Result<(), Failure> {
    let status = session.cluster("status")?;
    let (here, there) = (database.report().cluster.map(|cluster| cluster.to_string()), status["cluster"].as_str());
    if here.as_deref() != there {
        let message = format!(
            "the directory belongs to cluster {}, and the server to cluster {}",
            here.as_deref().unwrap_or("-"),
            there.unwrap_or("-")
        );
        return Err(Failure::new(Exit::Usage, "other_cluster", message).then("name a member of the same cluster"));
    }
    Ok(())
}

/// Downloads a snapshot from the server, and installs it in the directory.
fn install(database: &Database, session: &Session, data: &Path, json: bool) -> Result<Installed, Failure> {
    unfinished_file::sweep(data, STEM);
    let partial = UnfinishedFile::create(data, STEM).map_err(|error| Failure::file(data, &error))?;
    let fault = |error: io::Error| Failure::file(partial.path(), &error);
    let file = partial.handle().map(SnapshotFile::new).map_err(fault)?;
    let mut out = PartialFile { path: partial.path().to_owned(), file };
    let bar = render::progress_bar(None, "{elapsed_precise} {msg} {human_pos} bytes", json);
    bar.set_message("downloading");
    let mut progress = |bytes| bar.set_position(bytes);
    let compression = Compression::Lz4;
    let mut request = SnapshotRequest { since: None, compression, progress: &mut progress };
    let taken = session.snapshot(&mut request, &mut out);
    bar.finish_and_clear();
    taken?;
    let mut file = out.file.file().map_err(fault)?;
    file.rewind().map_err(fault)?;
    let refused = |error: InstallError| Failure::of(&error).then("repeat the command, with another member if it lasts");
    database.reinstall(&mut BufReader::new(file), &mut |_| {}).map_err(refused)
}
