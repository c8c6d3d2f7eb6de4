//! A generator of frames that uses only the tables of `docs/formats/wire.md`. It is an implementation of the format
//! independent of the crate's code.

use std::{collections::BTreeMap, path::Path, time::Duration};

use thalweg_types::command::{
    KeyspaceConfig, KeyspaceHistory,
    groups::{GroupConfig, GroupOrder},
};
use thalweg_wire::{ClientFrame, DecodeError, Decoder, HEADER_BYTES, Header, Kind, RawFrame, Sender, ServerFrame};

/// Small random number generator: xorshift64* (Vigna 2016).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    /// Returns a number near zero, near the maximum, or anywhere.
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(4),
            1 => u64::MAX - self.below(4),
            _ => self.next(),
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = self.below(12);
        (0..len).map(|_| self.next() as u8).collect()
    }

    fn text(&mut self) -> String {
        let len = self.below(8);
        (0..len).map(|_| ['a', 'z', '.', 'é', '≤', '\u{1f642}'][self.below(6) as usize]).collect()
    }

    fn name(&mut self) -> String {
        (0..=self.below(8)).map(|_| ['a', 'b', '9', '-'][self.below(4) as usize]).collect()
    }
}

/// Seeds of a randomised test: the value of `THALWEG_TEST_SEED`, or else 1 to `count`.
pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("THALWEG_TEST_SEED") {
        Ok(seed) => vec![seed.parse().expect("THALWEG_TEST_SEED is a number")],
        Err(_) => (1..=count).collect(),
    }
}

pub fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/wire.md");
    std::fs::read_to_string(path).expect("the document")
}

/// Layouts by name, read from the document.
pub struct Grammar {
    structures: BTreeMap<String, String>,
    bodies: BTreeMap<u16, String>,
}

impl Grammar {
    pub fn of_document() -> Self {
        let (mut structures, mut bodies) = (BTreeMap::new(), BTreeMap::new());
        let text = document();
        for line in text.lines().filter(|line| line.starts_with('|')) {
            let cells: Vec<_> = line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
            match cells[..] {
                [kind, _, "client" | "server" | "both", body] if body != "reserved" => {
                    bodies.insert(u16::from_str_radix(kind, 16).unwrap(), body.to_owned());
                }
                [name, layout] if line.contains("`") => {
                    structures.insert(name.to_owned(), layout.to_owned());
                }
                _ => {}
            }
        }
        Self { structures, bodies }
    }

    fn put_fields(&self, fields: &str, out: &mut Vec<u8>, random: &mut Random) {
        for field in split(fields) {
            let (_, layout) = field.split_once(' ').unwrap_or_else(|| panic!("{field:?} has no name and layout"));
            self.put(layout, out, random);
        }
    }

    fn put(&self, layout: &str, out: &mut Vec<u8>, random: &mut Random) {
        if let Some(item) = layout.strip_suffix('?') {
            let is_there = random.below(2) as u8;
            out.push(is_there);
            if is_there == 1 {
                self.put(item, out, random);
            }
            return;
        }
        if let Some(item) = layout.strip_prefix('[') {
            let item = item.strip_suffix(']').expect("a bracket closes");
            let count = random.below(4) as u32;
            out.extend_from_slice(&count.to_le_bytes());
            (0..count).for_each(|_| self.put(item, out, random));
            return;
        }
        match layout {
            "u8" => out.push(random.number() as u8),
            "u16" => out.extend_from_slice(&(random.number() as u16).to_le_bytes()),
            "u32" => out.extend_from_slice(&(random.number() as u32).to_le_bytes()),
            "u64" | "i64" => out.extend_from_slice(&random.number().to_le_bytes()),
            "bool" => out.push(random.below(2) as u8),
            "text" => {
                let text = random.text();
                out.extend_from_slice(&(text.len() as u16).to_le_bytes());
                out.extend_from_slice(text.as_bytes());
            }
            "short" => {
                let bytes = random.bytes();
                out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
                out.extend_from_slice(&bytes);
            }
            "bytes" => {
                let bytes = random.bytes();
                out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                out.extend_from_slice(&bytes);
            }
            "rest" => out.extend_from_slice(&random.bytes()),
            "magic" => out.extend_from_slice(b"TLWG"),
            "durability" => out.push(random.below(5) as u8),
            "level" => out.push([0, 1, 2, 3, 4, 255][random.below(6) as usize]),
            "class" => out.push(random.below(3) as u8),
            "settings" => keyspace_config(random).encode(out),
            "config" => (0..6).for_each(|_| out.extend_from_slice(&random.number().to_le_bytes())),
            "group config" => group_config(random).encode(out),
            name => {
                let layout = self.structures.get(name).unwrap_or_else(|| panic!("no layout is called {name:?}"));
                if layout.starts_with(|first: char| first.is_ascii_digit()) {
                    self.put_variant(layout, out, random);
                } else {
                    self.put_fields(layout, out, random);
                }
            }
        }
    }

    fn put_variant(&self, layout: &str, out: &mut Vec<u8>, random: &mut Random) {
        let variants = split(layout);
        let variant = variants[random.below(variants.len() as u64) as usize];
        let (code, rest) = variant.split_once(' ').expect("a number and a name");
        out.push(code.parse().expect("a number"));
        if let Some((_, fields)) = rest.split_once('(') {
            self.put_fields(fields.strip_suffix(')').expect("a parenthesis closes"), out, random);
        }
    }
}

/// Splits at commas outside of parentheses.
fn split(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, character) in list.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(list[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(list[from..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

fn keyspace_config(random: &mut Random) -> KeyspaceConfig {
    KeyspaceConfig {
        exact_counts: random.below(2) == 0,
        default_ttl: (random.below(2) == 0).then(|| Duration::from_micros(1 + random.below(1 << 40))),
        history: KeyspaceHistory {
            revisions: (random.below(2) == 0).then(|| 2 + random.below(255) as u32),
            age: (random.below(2) == 0).then(|| Duration::from_micros(1 + random.below(1 << 40))),
        },
    }
}

fn group_config(random: &mut Random) -> GroupConfig {
    GroupConfig {
        order: if random.below(2) == 0 { GroupOrder::Competing } else { GroupOrder::PerKey },
        ack_deadline: Duration::from_micros(1000 + random.below(1 << 36)),
        max_deliveries: (random.below(2) == 0).then(|| 1 + random.below(1 << 31) as u32),
        max_pending: 1 + random.below(100_000) as u32,
        dead_letters: (random.below(2) == 0).then(|| random.name()),
    }
}

/// Encodes random optional fields. All have known tags, because decoding and encoding again drops unknown ones.
fn fields(random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    let mut field = |tag: u16, bytes: &[u8]| {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        out.extend_from_slice(bytes);
    };
    if random.below(4) == 0 {
        field(1, random.name().as_bytes());
    }
    for tag in [2, 3] {
        if random.below(4) == 0 {
            field(tag, &random.number().to_le_bytes());
        }
    }
    if random.below(4) == 0 {
        field(0x8001, &(random.number() as u32).to_le_bytes());
    }
    out
}

/// Creates a random frame of `kind` according to the document.
pub fn frame(grammar: &Grammar, kind: Kind, random: &mut Random) -> Vec<u8> {
    let fields = fields(random);
    let mut body = Vec::new();
    let layout = grammar.bodies.get(&(kind as u16)).unwrap_or_else(|| panic!("{kind:?} has no layout"));
    grammar.put_fields(layout, &mut body, random);
    let mut out = ((fields.len() + body.len()) as u32).to_le_bytes().to_vec();
    out.extend_from_slice(&(kind as u16).to_le_bytes());
    out.extend_from_slice(&(fields.len() as u16).to_le_bytes());
    out.extend_from_slice(&(random.number() as u32).to_le_bytes());
    out.extend_from_slice(&fields);
    out.extend_from_slice(&body);
    out
}

/// The frame that fills `bytes`, whatever length its header states.
pub fn raw(bytes: &[u8]) -> RawFrame<'_> {
    let header = Header::decode(bytes[..HEADER_BYTES].try_into().unwrap());
    RawFrame { header, payload: &bytes[HEADER_BYTES..] }
}

/// Decodes a frame as its receiver does, and encodes it again.
pub fn decode_and_encode(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let raw = raw(bytes);
    let mut out = Vec::new();
    let kind = Kind::from_code(raw.header.kind).ok_or(DecodeError::UnknownKind { kind: raw.header.kind })?;
    if kind.sender() == Sender::Server {
        let envelope = ServerFrame::decode(raw)?;
        envelope.frame.encode(&mut out, envelope.id, &envelope.fields).expect("a decoded frame can be encoded");
    } else {
        let envelope = ClientFrame::decode(raw)?;
        envelope.frame.encode(&mut out, envelope.id, &envelope.fields).expect("a decoded frame can be encoded");
    }
    Ok(out)
}

/// Decodes a frame as its receiver does, and returns it as text.
pub fn shown(bytes: &[u8]) -> Result<String, DecodeError> {
    let raw = raw(bytes);
    match Kind::from_code(raw.header.kind).map(Kind::sender) {
        Some(Sender::Server) => ServerFrame::decode(raw).map(|envelope| format!("{:?}", envelope.frame)),
        _ => ClientFrame::decode(raw).map(|envelope| format!("{:?}", envelope.frame)),
    }
}

/// Feeds `bytes` to a decoder in pieces of `step` bytes, and returns all frames.
pub fn through_decoder(bytes: &[u8], step: usize) -> Vec<Vec<u8>> {
    let mut decoder = Decoder::new();
    decoder.set_max_bytes(1 << 20);
    let mut frames = Vec::new();
    for piece in bytes.chunks(step) {
        decoder.feed(piece);
        while let Ok(Some(raw)) = decoder.next_borrowed() {
            frames.push([&raw.header.encode()[..], raw.payload].concat());
        }
    }
    frames
}
