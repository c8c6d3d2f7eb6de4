//! Dispatch of each request frame to its handler.

use thalweg_wire::{ClientFrame, DecodeError, Kind, Permit};

use super::{
    caches, catalog,
    failure::Failure,
    groups, members, reads,
    request::Request,
    scans, status, streams, subject_requests,
    turn::{Handled, Turn},
    watches, write,
};

/// Returns the initial credit in a frame that begins a subscription; `None` for other frames.
#[must_use]
pub(crate) fn permit_of(frame: &ClientFrame<'_>) -> Option<Permit> {
    match frame {
        ClientFrame::Tail(tail) => Some(tail.permit.clone()),
        ClientFrame::Push(push) => Some(push.permit.clone()),
        ClientFrame::Watch(watch) => Some(watch.permit.clone()),
        ClientFrame::Subscribe(subscribe) => Some(subscribe.permit.clone()),
        ClientFrame::WatchCluster(watch) => Some(watch.permit.clone()),
        _ => None,
    }
}

/// How recent a cluster member's state must be before the member handles a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consistency {
    /// The request reads the node's state. The state must satisfy the read level that the request states.
    Read,
    /// The request names a consumer group, and this node looks up the group in its state before it proposes a command.
    /// If the node does not lead the cluster, or does not have the group, it first waits until its state is up to date.
    Names,
    /// The state may be old: the request's command goes to the leader, or it concerns only this node.
    Local,
}

/// Returns how recent a cluster member's state must be for requests of this kind.
#[must_use]
pub(crate) fn consistency(kind: Kind) -> Consistency {
    match kind {
        Kind::Get
        | Kind::MultiGet
        | Kind::Scan
        | Kind::Versions
        | Kind::FindKeyspace
        | Kind::ListKeyspaces
        | Kind::FindLease
        | Kind::ListLeases
        | Kind::Read
        | Kind::Tail
        | Kind::FindStream
        | Kind::ListStreams
        | Kind::FindOffset
        | Kind::ListProducers
        | Kind::FindGroup
        | Kind::ListGroups
        | Kind::Watch => Consistency::Read,
        Kind::Fetch | Kind::Push => Consistency::Names,
        _ => Consistency::Local,
    }
}

/// Calls the handler for a request frame.
pub(crate) fn dispatch(turn: &mut Turn<'_>, request: &Request<'_>, frame: ClientFrame<'_>) -> Result<Handled, Failure> {
    match frame {
        ClientFrame::Get(get) => reads::get(turn, request, &get),
        ClientFrame::Write(write) => write::write(turn, request, &write),
        ClientFrame::WriteAndPublish(wanted) => write::write_and_publish(turn, request, &wanted),
        ClientFrame::MultiGet(wanted) => reads::multi_get(turn, request, &wanted),
        ClientFrame::Scan(scan) => scans::scan(turn, request, &scan),
        ClientFrame::Versions(wanted) => scans::versions(turn, request, &wanted),
        ClientFrame::FindKeyspace(wanted) => catalog::find_keyspace(turn, request, &wanted),
        ClientFrame::ListKeyspaces(wanted) => catalog::list_keyspaces(turn, request, &wanted),
        ClientFrame::FindLease(wanted) => catalog::find_lease(turn, request, &wanted),
        ClientFrame::ListLeases(wanted) => catalog::list_leases(turn, request, &wanted),
        ClientFrame::Read(read) => streams::read(turn, request, &read),
        ClientFrame::Tail(tail) => streams::tail(turn, request, &tail),
        ClientFrame::FindStream(wanted) => catalog::find_stream(turn, request, &wanted),
        ClientFrame::ListStreams(wanted) => catalog::list_streams(turn, request, &wanted),
        ClientFrame::FindOffset(wanted) => streams::find_offset(turn, request, &wanted),
        ClientFrame::ListProducers(wanted) => catalog::list_producers(turn, request, &wanted),
        ClientFrame::Fetch(fetch) => groups::fetch(turn, &fetch),
        ClientFrame::Push(push) => groups::push(turn, request, &push),
        ClientFrame::FindGroup(wanted) => groups::find_group(turn, request, &wanted),
        ClientFrame::ListGroups(wanted) => groups::list(turn, request, &wanted),
        ClientFrame::Watch(watch) => watches::watch(turn, request, &watch),
        ClientFrame::ReadStatus(_) => status::read(turn, request),
        ClientFrame::ReadMembers(_) => members::read(turn, request),
        ClientFrame::WatchCluster(watch) => members::watch(turn, request, &watch),
        ClientFrame::Publish(publish) => subject_requests::publish(turn, request, &publish),
        ClientFrame::Subscribe(subscribe) => subject_requests::subscribe(turn, request, &subscribe),
        ClientFrame::Ask(ask) => subject_requests::ask(turn, request, &ask),
        ClientFrame::CacheGet(get) => caches::get(turn, request, &get),
        ClientFrame::CachePut(put) => caches::put(turn, request, &put),
        ClientFrame::CacheDelete(delete) => caches::delete(turn, request, &delete),
        ClientFrame::CacheTouch(touch) => caches::touch(turn, request, &touch),
        ClientFrame::CacheAdd(add) => caches::add(turn, request, &add),
        ClientFrame::CacheMultiGet(get) => caches::multi_get(turn, request, &get),
        ClientFrame::CacheMultiPut(put) => caches::multi_put(turn, request, &put),
        ClientFrame::CacheScan(scan) => caches::scan(turn, request, &scan),
        ClientFrame::CacheClear(clear) => caches::clear(turn, request, &clear),
        ClientFrame::OpenCache(open) => caches::open(turn, request, &open),
        ClientFrame::DropCache(gone) => caches::drop_cache(turn, request, &gone),
        ClientFrame::ReadCacheStats(read) => caches::stats(turn, request, &read),
        other => Err(Failure::of(&DecodeError::UnknownKind { kind: other.kind() as u16 })),
    }
}
