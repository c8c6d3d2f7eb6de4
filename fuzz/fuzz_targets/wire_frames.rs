//! A channel's bytes, as they come and as frames made of the input, through decoder, frames, commands and batches.
//!
//! Never a panic; what is taken for a frame is one (its body encodes to the same bytes again); what a server would send on
//! is well formed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_fuzz::Input;
use thalweg_types::record::Records;
use thalweg_wire::{
    Batch, ClientCommand, ClientFrame, Decoder, HEADER_BYTES, Header, Kind, Messages, RawFrame, ServerFrame, Session,
};

/// Looks at a frame as both sides would.
fn look(raw: RawFrame<'_>, session: &mut Session<u32>) {
    let mut out = Vec::new();
    let same_body = |out: &[u8]| {
        let fields = |header: &Header| HEADER_BYTES + usize::from(header.fields);
        let header = Header::decode(out[..HEADER_BYTES].try_into().expect("a frame has a header"));
        assert_eq!(&out[fields(&header)..], &raw.payload[usize::from(raw.header.fields)..]);
    };
    if let Ok(envelope) = ClientFrame::decode(raw) {
        envelope.frame.encode(&mut out, envelope.id, &envelope.fields).expect("it was a frame before");
        same_body(&out);
        match &envelope.frame {
            ClientFrame::Write(write) => command(write.command.0),
            ClientFrame::Publish(publish) => publish.batches.iter().for_each(batch),
            _ => {}
        }
    }
    out.clear();
    if let Ok(envelope) = ServerFrame::decode(raw) {
        envelope.frame.encode(&mut out, envelope.id, &envelope.fields).expect("it was a frame before");
        same_body(&out);
        let _ = session.route(envelope.frame.kind(), envelope.id);
        if let ServerFrame::Deliver(deliver) = &envelope.frame {
            batch(deliver.batch.0);
            deliver.subscriptions.iter().for_each(|id| _ = session.delivered(id, 1, 1));
        }
    }
}

fn command(bytes: &[u8]) {
    let Ok(command) = ClientCommand::check(bytes) else { return };
    for write in command.command().writes() {
        if let thalweg_types::command::Write::Append { batch, count, .. } = write {
            let records: Result<Vec<_>, _> = Records::new(batch).collect();
            assert_eq!(records.expect("checked").len(), count as usize);
        }
    }
}

fn batch(bytes: &[u8]) {
    let Ok(batch) = Batch::decode(bytes) else { return };
    let _ = batch.check_crc();
    if batch.check().is_ok() {
        assert_eq!(batch.messages().filter(Result::is_ok).count(), batch.count() as usize);
    }
}

fuzz_target!(|data: &[u8]| {
    command(data);
    batch(data);
    let theirs = Records::new(data).take_while(Result::is_ok).count();
    assert_eq!(Messages::new(data).take_while(Result::is_ok).count(), theirs, "both readers agree");

    let mut session = Session::new(4, 4);
    let window = thalweg_wire::Permit { messages: 3, bytes: 100 };
    let _ = (session.request(1), session.subscribe(2, &window), session.request(3), session.subscribe(4, &window));
    let mut decoder = Decoder::new();
    for piece in data.chunks(1 + data.len() / 3) {
        decoder.feed(piece);
        while let Ok(Some(raw)) = decoder.next_borrowed() {
            look(raw, &mut session);
        }
    }
    // As frames whose header is right, so that what is behind it is reached.
    let mut input = Input(data);
    while !input.is_empty() {
        let kind = Kind::ALL[usize::from(input.byte()) % Kind::ALL.len()] as u16;
        let (id, fields) = (u32::from(input.byte() % 6), input.bytes());
        let payload = [fields, input.bytes()].concat();
        let header = Header { len: payload.len() as u32, kind, fields: fields.len() as u16, id };
        look(RawFrame { header, payload: &payload }, &mut session);
    }
});
