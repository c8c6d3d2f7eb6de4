//! `streams`, `status`: show a node's streams and its state.

use serde_json::{Value, json};
use thalweg_types::command::StreamConfig;

use super::with_target;
use crate::{
    cli::{StreamAction, Streams},
    failure::Failure,
    render,
    span::{show_span, show_time},
    target::{Access, Place, ProducerRow, StreamRow, config_json},
};

pub fn streams(args: &Streams) -> Result<(), Failure> {
    let place = args.place();
    match &args.action {
        None | Some(StreamAction::List(_)) => {
            let rows = with_target(place, Access::Read, |target| target.streams())?;
            show_streams(&rows, place.json)
        }
        Some(StreamAction::Show { stream, .. }) => {
            let row = with_target(place, Access::Read, |target| target.stream(stream))?;
            show_streams(&[row], place.json)
        }
        Some(StreamAction::Create { stream, retention, .. }) => {
            let config = retention.config();
            let (row, created) = with_target(place, Access::Write, |target| target.create_stream(stream, &config))?;
            if !created {
                render::note("it was there already and is left as it is; `thalweg streams configure` changes it");
            }
            show_streams(&[row], place.json)
        }
        Some(StreamAction::Configure { stream, retention, .. }) => {
            let config = retention.config();
            let row = with_target(place, Access::Write, |target| target.configure_stream(stream, &config))?;
            show_streams(&[row], place.json)
        }
        Some(StreamAction::Producers { stream, .. }) => {
            let rows = with_target(place, Access::Read, |target| target.producers(stream))?;
            show_producers(stream, &rows, place.json)
        }
        Some(StreamAction::OpenProducer { stream, producer, .. }) => {
            let epoch = with_target(place, Access::Write, |target| target.open_producer(stream, producer))?;
            render::line(&if place.json {
                json!({"id": producer, "epoch": epoch, "next_sequence": 0}).to_string()
            } else {
                epoch.to_string()
            })
        }
        Some(StreamAction::Trim { stream, before, .. }) => {
            let row = with_target(place, Access::Read, |target| target.trim_stream(stream, *before))?;
            show_streams(&[row], place.json)
        }
        Some(StreamAction::Delete { stream, .. }) => {
            with_target(place, Access::Read, |target| target.delete_stream(stream))?;
            render::line(&if place.json {
                json!({"deleted": stream}).to_string()
            } else {
                format!("ok, {stream} is gone")
            })
        }
    }
}

pub fn status(place: &Place) -> Result<(), Failure> {
    let status = with_target(place, Access::Read, |target| target.status())?;
    if place.json {
        return render::line(&status.to_string());
    }
    let rows = render::flatten(&status).into_iter().map(|(path, value)| vec![path, value]);
    render::line(&render::table(&["figure", "value"], rows))
}

fn show_streams(rows: &[StreamRow], json: bool) -> Result<(), Failure> {
    if json {
        return rows.iter().try_for_each(|row| render::line(&stream_json(row).to_string()));
    }
    if rows.is_empty() {
        render::note("no streams yet: `thalweg append STREAM RECORD` creates one");
        return Ok(());
    }
    let shown = rows.iter().map(|row| {
        vec![
            row.name.clone(),
            row.start.to_string(),
            row.next.to_string(),
            render::count(row.next - row.start),
            render::bytes(row.bytes),
            if row.last_time == 0 { "-".to_owned() } else { show_time(row.last_time) },
            keeps(&row.config),
        ]
    });
    render::line(&render::table(&["stream", "start", "next", "records", "bytes", "newest", "keeps"], shown))
}

fn show_producers(stream: &str, rows: &[ProducerRow], json: bool) -> Result<(), Failure> {
    if json {
        return rows.iter().try_for_each(|row| {
            render::line(
                &json!({
                    "id": row.id, "epoch": row.epoch, "next_sequence": row.next_sequence,
                    "last_time_micros": row.last_time,
                })
                .to_string(),
            )
        });
    }
    if rows.is_empty() {
        render::note(&format!(
            "no producers: `thalweg append {stream} RECORD --producer ID --sequence 0` makes one known"
        ));
        return Ok(());
    }
    let shown = rows.iter().map(|row| {
        vec![row.id.clone(), row.epoch.to_string(), row.next_sequence.to_string(), show_time(row.last_time)]
    });
    render::line(&render::table(&["producer", "epoch", "next sequence", "last heard of"], shown))
}

/// Formats a stream like the API.
fn stream_json(row: &StreamRow) -> Value {
    json!({
        "name": row.name, "start": row.start, "next": row.next, "bytes": row.bytes,
        "last_time_micros": row.last_time, "config": config_json(&row.config),
    })
}

fn keeps(config: &StreamConfig) -> String {
    let limits = [
        config.max_age.map(show_span),
        config.max_bytes.map(render::bytes),
        config.max_records.map(|records| format!("{} records", render::count(records))),
        config.compaction.map(|_| "newest of each key".to_owned()),
    ];
    let limits: Vec<_> = limits.into_iter().flatten().collect();
    if limits.is_empty() { "everything".to_owned() } else { limits.join(", ") }
}
