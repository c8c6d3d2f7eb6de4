//! The status of a server and of its node as JSON, for every protocol and the command line.

use serde_json::{Map, Value, json};
use thalweg_engine::{
    Database, Health,
    space::{SpaceKind, SpaceReport},
};
use thalweg_types::NodeId;

use crate::{admission::Resource, app::App};

/// Returns the status of a server as JSON.
#[must_use]
pub fn server_status(app: &App) -> Value {
    let mut object = node_status(app.db.blocking());
    object["uptime_seconds"] = json!(app.started.elapsed().as_secs());
    object["durability"] = json!(app.config.acknowledged().name());
    object["http"] = json!({
        "connections": app.admission.bound(Resource::Connections).used(),
        "requests_in_flight": app.admission.bound(Resource::Requests).used(),
        "tails": app.admission.bound(Resource::Tails).used(),
        "shed": Resource::ALL.iter().map(|resource| app.admission.bound(*resource).rejections()).sum::<u64>(),
    });
    let subjects = app.views.broker.stats();
    object["subjects"] = json!({
        "links": subjects.links,
        "subscriptions": subjects.subscriptions,
        "queued_messages": subjects.queued_messages,
        "published": subjects.messages,
    });
    let caches = app.views.caches.list();
    object["caches"] = json!({
        "count": caches.len(),
        "max_bytes": caches.iter().map(|named| named.max_bytes).sum::<u64>(),
    });
    object["native"] = json!({ "connections": app.native_connections.count() });
    if let Some(cluster) = &app.cluster {
        let report = cluster.handle.report();
        let id = |node: NodeId| format!("{:016x}", node.0);
        object["cluster"] = json!({
            "cluster": report.cluster.to_string(),
            "leads": report.leader == Some(report.node),
            "leader": report.leader.map(id),
            "term": report.term.0,
            "commit_index": report.commit_index.0,
            "voters": report.voters().count(),
            "learners": report.members.len() - report.voters().count(),
            "majority": report.has_majority(),
        });
    }
    object
}

/// Returns the part of `/v1/status` that describes the database. The command line uses it for a database without a
/// server.
#[must_use]
pub fn node_status(db: &Database) -> Value {
    let (report, stats, holders) = (db.report(), db.stats(), db.log_holders());
    let build = thalweg_types::build::get();
    let health = match db.health() {
        Health::Good => json!({ "status": "good" }),
        Health::DiskFull { free_bytes } => json!({ "status": "disk_full", "free_bytes": free_bytes }),
        Health::StoppedServing { reason } => json!({ "status": "stopped_serving", "reason": reason }),
        Health::Failed { reason } => json!({ "status": "failed", "reason": reason }),
        Health::Closed => json!({ "status": "closed" }),
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "build": { "commit": build.commit, "dirty": build.is_dirty, "profile": thalweg_types::build::profile() },
        "node": format!("{:016x}", report.node.0),
        "health": health,
        "durability": db.durability().name(),
        "backend": report.backend.name(),
        "opened": {
            "created": report.created,
            "clean": report.clean,
            "cut_bytes": report.cut_bytes,
            "replayed_records": report.replayed_records,
            "replayed_bytes": report.replayed_bytes,
            "seconds": report.took.as_secs_f64(),
            "repaired": report.repaired,
        },
        "space_time_micros": stats.space_time.0,
        "keyspaces": stats.keyspaces,
        "streams": stats.streams,
        "applied_index": stats.applied_index.0,
        "applied_revision": stats.applied_revision.0,
        "running_hash": format!("{:016x}", stats.running_hash),
        "state_machine": { "version_in_force": db.version_in_force(), "known_version": db.known_version() },
        "queue": { "commands": stats.queue_commands, "bytes": stats.queue_bytes },
        "log": {
            "segments": stats.log.segments,
            "spare_segments": stats.log.spare_segments,
            "bytes": stats.log.bytes,
            "syncs": stats.log.syncs,
            "mean_sync_micros": stats.log.sync_micros.checked_div(stats.log.syncs),
            "replay_bytes": stats.replay_bytes,
            "free_disk_bytes": stats.log.free_disk_bytes,
            "kept": {
                "for_replay_bytes": holders.replay_bytes,
                "for_history_bytes": holders.history_bytes,
                "for_data_bytes": holders.data_bytes,
                "for_a_follower": holders.is_kept_for_follower,
                "open_snapshots": holders.open_snapshots,
            },
        },
        "state": {
            "memory_bytes": stats.state.memory_bytes,
            "disk_bytes": stats.state.disk_bytes,
            "tables_per_level": stats.state.tables_per_level,
            "estimated_keys": stats.state.estimated_keys,
            "stalls": stats.state.stalls,
        },
        "maintenance_error": stats.maintenance_error,
        "scrub": {
            "running": stats.scrub.is_running,
            "rounds": stats.scrub.rounds,
            "done_bytes": stats.scrub.done_bytes,
            "total_bytes": stats.scrub.total_bytes,
            "damages": stats.scrub.damages,
            "damage": stats.scrub.damage,
        },
    })
}

/// Returns the report about the disk space of a data directory as JSON, for `/v1/space` and for the command line.
#[must_use]
pub fn space_json(report: &SpaceReport) -> Value {
    let kinds = SpaceKind::ALL.into_iter().filter_map(|kind| Some((kind, report.parts.get(&kind)?)));
    let kinds = kinds.map(|(kind, part)| json!({ "kind": kind.name(), "files": part.files, "bytes": part.bytes }));
    let levels = report.levels.iter().map(|level| json!({ "tables": level.tables, "bytes": level.bytes }));
    let payload = report.payload.map(|payload| {
        let mut object = Map::new();
        let figures = [
            ("bytes", payload.live_bytes()),
            ("keys", payload.keys),
            ("key_bytes", payload.key_bytes),
            ("value_bytes", payload.value_bytes),
            ("parts", payload.parts),
            ("part_bytes", payload.part_bytes),
            ("records", payload.records),
            ("record_bytes", payload.record_bytes),
            ("versions", payload.versions),
            ("version_bytes", payload.version_bytes),
            ("rows", payload.rows),
            ("row_bytes", payload.row_bytes),
        ];
        object.extend(figures.map(|(name, value)| (name.to_owned(), json!(value))));
        Value::Object(object)
    });
    let options = &report.options;
    json!({
        "backend": report.backend.name(),
        "files": report.parts.values().map(|part| part.files).sum::<u64>(),
        "bytes": report.parts.values().map(|part| part.bytes).sum::<u64>(),
        "kinds": kinds.collect::<Vec<_>>(),
        "payload": payload,
        "count_bytes": report.count_bytes,
        "log": {
            "segments": report.segments,
            "segment_bytes": options.segment_bytes,
            "spare_segments": options.spare_segments,
            "history_bytes": options.history_bytes,
            "history_age_seconds": options.history_age.as_secs_f64(),
            "open_snapshots": report.open_snapshots,
        },
        "state": {
            "levels": levels.collect::<Vec<_>>(),
            "entries": report.entries,
            "deletions": report.deletions,
            "reusable_bytes": report.reusable_bytes,
        },
    })
}
