//! Scripts of frames that a client might send, and checks of the answers. A script has frames of every kind, made of
//! the golden frames and of decisions that an input determines. The test with seeds and the fuzz target share this, and
//! each supplies its own input.

use std::{net::SocketAddr, time::Duration};

use thalweg_types::limits::MAX_FRAME_BYTES;
use thalweg_wire::{Decoder, Frame, HEADER_BYTES, Header, ServerFrame, handshake::hello};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Longest time of one script.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of frames of a script.
const MAX_FRAMES: usize = 64;

/// Returns a frame of each kind, including those of the server.
pub fn samples() -> Vec<Vec<u8>> {
    let text = include_str!("../../../wire/tests/golden/frames-v1.txt");
    let is_hex = |line: &&str| line.split(' ').all(|byte| byte.len() == 2 && u8::from_str_radix(byte, 16).is_ok());
    let bytes = |line: &str| line.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect::<Vec<_>>();
    let frames = text.split("\n\n").map(|block| block.lines().filter(is_hex).flat_map(bytes).collect::<Vec<u8>>());
    frames.filter(|frame| frame.len() >= HEADER_BYTES).collect()
}

/// Decisions, read from the front of an input; zero after its end.
struct Decisions<'a>(&'a [u8]);

impl Decisions<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, bound: usize) -> usize {
        (usize::from(self.byte()) << 8 | usize::from(self.byte())) % bound.max(1)
    }
}

/// Returns the bytes that a channel sends after its hello: samples with a few request ids and some changes to their
/// bodies, as the input determines.
pub fn script(samples: &[Vec<u8>], input: &[u8]) -> Vec<u8> {
    let (mut out, mut input) = (Vec::new(), Decisions(input));
    for _ in 0..MAX_FRAMES {
        if input.0.is_empty() {
            break;
        }
        let mut frame = samples[input.below(samples.len())].clone();
        let mut header = Header::decode(frame[..HEADER_BYTES].try_into().unwrap());
        header.id = u32::from(input.byte() % 8);
        for _ in 0..input.byte() % 4 {
            change(&mut frame, &mut input);
        }
        header.len = (frame.len() - HEADER_BYTES) as u32;
        if input.byte() == 255 {
            header.fields = input.byte().into();
        }
        frame[..HEADER_BYTES].copy_from_slice(&header.encode());
        out.extend_from_slice(&frame);
    }
    if input.byte() % 8 == 7 {
        out.truncate(out.len() - input.below(out.len()) / 8);
    }
    out
}

/// Makes one change after the header: a byte, a word near zero or near the maximum (ids, counts and lengths are words),
/// a cut, or extra bytes.
fn change(frame: &mut Vec<u8>, input: &mut Decisions<'_>) {
    let body = frame.len() - HEADER_BYTES;
    let at = HEADER_BYTES + input.below(body);
    match input.byte() % 8 {
        _ if body == 0 => frame.push(input.byte()),
        0 => frame[at] = input.byte(),
        1 => frame.truncate(at),
        2 => frame.extend((0..input.byte() % 32).map(|_| 0)),
        kind => {
            let word = if kind == 3 { u32::MAX - u32::from(input.byte() % 4) } else { u32::from(input.byte() % 5) };
            let end = frame.len().min(at + 4);
            frame[at..end].copy_from_slice(&word.to_le_bytes()[..end - at]);
        }
    }
}

/// Sends a script on a connection of its own, and reads all answers to the end. Asserts that every answer is a frame of
/// a server, and that none fails as `internal`.
pub async fn perform(server: SocketAddr, script: &[u8]) {
    let done = tokio::time::timeout(PATIENCE, performed(server, script)).await;
    done.expect("a client that has ended its half is answered, and then the connection ends");
}

async fn performed(server: SocketAddr, script: &[u8]) {
    let stream = TcpStream::connect(server).await.expect("the server accepts");
    let (mut receive, mut send) = stream.into_split();
    let mut bytes = Vec::new();
    hello("script", MAX_FRAME_BYTES as u32, Duration::ZERO, &[]).encode(&mut bytes, 0).expect("it is small");
    bytes.extend_from_slice(script);
    let sending = async move {
        // The server may send a goodbye before all bytes are written.
        let _ = send.write_all(&bytes).await;
        let _ = send.shutdown().await;
        send
    };
    let receiving = async {
        let mut decoder = Decoder::new();
        decoder.set_max_bytes(MAX_FRAME_BYTES as u32);
        let mut frames = 0_u64;
        loop {
            while let Some(raw) = decoder.next_borrowed().expect("a server keeps to the bounds") {
                answer(&ServerFrame::decode(raw).expect("a server's frame").frame, frames);
                frames += 1;
            }
            match receive.read_buf(decoder.buffer()).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => break,
            }
        }
        assert!(frames > 0, "there was no welcome");
    };
    tokio::join!(sending, receiving);
}

fn answer(frame: &ServerFrame<'_>, number: u64) {
    match frame {
        ServerFrame::Welcome(_) => assert_eq!(number, 0),
        _ if number == 0 => panic!("it began with {frame:?}"),
        ServerFrame::Failed(failed) => assert_ne!(failed.code, "internal", "{failed:?}"),
        ServerFrame::Ended(ended) => assert_ne!(ended.code, "internal", "{ended:?}"),
        _ => {}
    }
}
