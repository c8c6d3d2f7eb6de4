//! A generator of frames and commands that uses only the tables of `docs/formats/wire.md` and `command.md`. It is an
//! implementation of the formats independent of the crates' code.

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

/// A document that describes a format.
pub struct Document(String);

impl Document {
    /// Reads a document of `docs/formats`.
    pub fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats").join(name);
        Self(std::fs::read_to_string(path).expect("the document"))
    }

    pub fn contains(&self, text: &str) -> bool {
        self.0.contains(text)
    }

    /// Cells of all rows of the tables with this heading.
    pub fn rows(&self, heading: &str) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        let mut within = false;
        for line in self.0.lines() {
            if line.starts_with(heading) {
                within = true;
            } else if !line.starts_with('|') {
                within = false;
            } else if within && !line.starts_with("|---") {
                let cells = line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`').to_owned());
                rows.push(cells.collect());
            }
        }
        rows
    }

    /// Layouts of the structures by name.
    pub fn structures(&self) -> BTreeMap<String, String> {
        self.rows("| name | layout |").into_iter().map(|row| (row[0].clone(), row[1].clone())).collect()
    }
}

/// Layouts by name, read from a document.
pub struct Grammar {
    structures: BTreeMap<String, String>,
}

impl Grammar {
    pub fn of(document: &Document) -> Self {
        Self { structures: document.structures() }
    }

    /// Appends fields with random contents.
    pub fn put_fields(&self, fields: &str, out: &mut Vec<u8>, random: &mut Random) {
        let mut counts = BTreeMap::new();
        let fields = split(fields);
        for field in &fields {
            let (name, layout) = field.split_once(' ').unwrap_or_else(|| panic!("{field:?} has no name and layout"));
            if fields.iter().any(|other| other.contains(&format!(" {name} × "))) {
                assert_eq!(layout, "u32", "{name} counts");
                counts.insert(name, random.below(4) as u32);
                out.extend_from_slice(&counts[name].to_le_bytes());
            } else if let Some((count, item)) = layout.split_once(" × ") {
                (0..counts[count]).for_each(|_| self.put(item, out, random));
            } else {
                self.put(layout, out, random);
            }
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
            "varint" => {
                let mut number = random.number() >> random.below(64);
                while number >= 0x80 {
                    out.push(number as u8 | 0x80);
                    number >>= 7;
                }
                out.push(number as u8);
            }
            "bool" => out.push(random.below(2) as u8),
            "text" => put_short(out, random.text().as_bytes()),
            "short" => put_short(out, &random.bytes()),
            "bytes" => {
                let bytes = random.bytes();
                out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                out.extend_from_slice(&bytes);
            }
            "rest" => out.extend_from_slice(&random.bytes()),
            "magic" => out.extend_from_slice(b"TLWG"),
            "peer magic" => out.extend_from_slice(b"TWPR"),
            "32 bytes" => (0..32).for_each(|_| out.push(random.next() as u8)),
            "durability" => out.push(random.below(5) as u8),
            "level" => out.push([0, 1, 2, 3, 4, 255][random.below(6) as usize]),
            "class" => out.push(random.below(3) as u8),
            "settings" => keyspace_config(random).encode(out),
            "config" => (0..6).for_each(|_| out.extend_from_slice(&random.number().to_le_bytes())),
            "name" => put_short(out, random.name().as_bytes()),
            "member name" | "reason" => put_short(out, random.text().as_bytes()),
            "producer id" => {
                let id = random.name();
                out.push(id.len() as u8);
                out.extend_from_slice(id.as_bytes());
            }
            "sequence" => out.extend_from_slice(&(random.number() >> 1).to_le_bytes()),
            "end key" if random.below(2) == 0 => out.extend_from_slice(&[0xff; 4]),
            "end key" => self.put("bytes", out, random),
            "lease ttl" => out.extend_from_slice(&(100_000 + random.below(1 << 40)).to_le_bytes()),
            "ack span" => out.extend_from_slice(&random.below(86_400_000_001).to_le_bytes()),
            "again" => {
                let delays = [u64::MAX, u64::MAX - 1, random.below(86_400_000_001)];
                out.extend_from_slice(&delays[random.below(3) as usize].to_le_bytes());
            }
            "fetch count" => out.extend_from_slice(&(1 + random.below(1000) as u32).to_le_bytes()),
            "stale rows" => self.put("[bytes]", out, random),
            "offset run" => {
                out.extend_from_slice(&(random.number() >> 1).to_le_bytes());
                out.extend_from_slice(&(1 + random.number() as u32 / 2).to_le_bytes());
            }
            "deadline" => {
                let kind = random.below(5) as u8;
                let micros = if matches!(kind, 2 | 3) { 1 + random.below(1 << 40) } else { 0 };
                out.push(kind);
                out.extend_from_slice(&micros.to_le_bytes());
            }
            "scan" => {
                let flags = random.below(16) as u8;
                out.push(flags);
                self.put("u32", out, random);
                (0..1 + (flags & 12).count_ones()).for_each(|_| self.put("bytes", out, random));
            }
            "request" => {
                let arguments = 1 + random.below(3) as u32;
                out.extend_from_slice(&arguments.to_le_bytes());
                (0..arguments).for_each(|_| self.put("bytes", out, random));
            }
            "group config" => group_config(random).encode(out),
            name => {
                let layout = self.structures.get(name).unwrap_or_else(|| panic!("no layout is called {name:?}"));
                let first = split(layout)[0];
                if first.starts_with(|first: char| first.is_ascii_digit()) || self.structures.contains_key(first) {
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
        if self.structures.contains_key(variant) {
            return self.put(variant, out, random);
        }
        let (code, rest) = variant.split_once(' ').expect("a number and a name");
        out.push(code.parse().expect("a number"));
        if let Some((_, fields)) = rest.split_once('(') {
            self.put_fields(fields.strip_suffix(')').expect("a parenthesis closes"), out, random);
        }
    }
}

fn put_short(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Splits at commas outside of parentheses.
pub fn split(list: &str) -> Vec<&str> {
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
        field(5, &[random.below(2) as u8]);
    }
    if random.below(4) == 0 {
        field(6, random.name().as_bytes());
    }
    if random.below(4) == 0 {
        field(0x8001, &(random.number() as u32).to_le_bytes());
    }
    out
}

/// Layouts of the bodies of frames by kind, and of the parts of the bodies.
pub struct FrameGrammar {
    grammar: Grammar,
    bodies: BTreeMap<u16, String>,
}

impl FrameGrammar {
    pub fn of_document() -> Self {
        let document = Document::read("wire.md");
        let rows = document.rows("| kind | frame |").into_iter().filter(|row| row[3] != "reserved");
        let bodies = rows.map(|row| (u16::from_str_radix(&row[0], 16).unwrap(), row[3].clone())).collect();
        Self { grammar: Grammar::of(&document), bodies }
    }
}

/// Creates a random frame of `kind` according to the document.
pub fn frame(grammar: &FrameGrammar, kind: Kind, random: &mut Random) -> Vec<u8> {
    let fields = fields(random);
    let mut body = Vec::new();
    let layout = grammar.bodies.get(&(kind as u16)).unwrap_or_else(|| panic!("{kind:?} has no layout"));
    grammar.grammar.put_fields(layout, &mut body, random);
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
