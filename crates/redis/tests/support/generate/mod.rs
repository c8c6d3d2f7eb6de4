//! Random commands. Each family of commands is a module with a table of functions; [`Mix`] combines families.

pub mod connection;
pub mod hashes;
pub mod keys;
pub mod streams;
pub mod strings;

use super::{Rng, compare::Compare, connection::Args};

/// A command, and the comparison for its replies.
#[derive(Clone, Debug)]
pub struct Step {
    pub args: Args,
    pub compare: Compare,
}

/// Creates a step.
pub type Generator = fn(&mut Rng, &Pool) -> Step;

/// A step whose replies must be equal.
pub fn exact(args: Args) -> Step {
    Step { args, compare: Compare::Exact }
}

/// Builds arguments from any values that are bytes.
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => { vec![$(($arg).as_ref() as &[u8]),*].into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>() };
}

/// Names from which arguments are chosen.
#[derive(Clone, Debug)]
pub struct Pool {
    /// A few keys, so that commands use the same ones.
    pub keys: Args,
    pub fields: Args,
}

impl Default for Pool {
    fn default() -> Self {
        let long = vec![b'k'; 300];
        Self {
            keys: args![b"a", b"b", b"c", b"ab", b"key:1", b"key:2", b"\x00\xff\r\n", b"", b"\xc3\xa4*[?]", long],
            fields: args![b"f", b"g", b"h", b"1", b"field:2", b"\xff\x00", b"", b"fg"],
        }
    }
}

/// Integers around every limit.
const INTEGERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "2",
    "10",
    "-10",
    "100",
    "9223372036854775807",
    "9223372036854775806",
    "-9223372036854775808",
    "-9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "99999999999999999999",
    "4611686018427387904",
    "2147483647",
    "2147483648",
    "-2147483649",
    "18446744073709551615",
    "",
    " 1",
    "1 ",
    "+1",
    "01",
    "-0",
    "1.0",
    "1e3",
    "0x10",
    "abc",
    "--1",
    "-",
    "1\u{0}2",
];

/// Numbers that C accepts, and others.
const FLOATS: &[&str] = &[
    "0",
    "-0",
    "1",
    "-1",
    "0.1",
    "0.2",
    "-0.3",
    "3.14",
    "1e3",
    "1E+3",
    "1e-3",
    "5.0e3",
    ".5",
    "5.",
    "-.5e-1",
    "1e17",
    "1e18",
    "1e19",
    "1e-17",
    "5e-18",
    "4.9e-18",
    "1e30",
    "1e100",
    "1e308",
    "1.7e308",
    "1e4931",
    "-1e4931",
    "1.18973149535723176e4932",
    "1e4932",
    "1e4933",
    "-1e4933",
    "1e-4940",
    "3.6e-4951",
    "1e-4951",
    "1e-5000",
    "18446744073709551615",
    "18446744073709551616",
    "9007199254740993",
    "0.30000000000000001665",
    "123456789.123456789",
    "0x10",
    "0x1p3",
    "0x.8p1",
    "-0X1.8P-2",
    "0x",
    "0x1p",
    "inf",
    "-inf",
    "+Infinity",
    "nan",
    "-nan",
    "nan(1)",
    "",
    " 1",
    "1 ",
    "1e",
    "1e+",
    ".",
    "+1",
    "++1",
    "1_0",
    "abc",
    "1\u{0}2",
    "9223372036854775807",
    "0.00000000000000001",
    "99999999999999999999999999999999999999",
];

/// Values of all kinds.
const VALUES: &[&[u8]] = &[
    b"",
    b"v",
    b"value",
    b"0",
    b"1",
    b"-5",
    b"10.5",
    b"3.0e3",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"\x00\x01\xff",
    b"line\r\nbreak",
    b"not a number",
    b" 7",
    b"007",
    b"1e400",
    b"inf",
];

const PATTERNS: &[&[u8]] = &[
    b"*",
    b"**",
    b"",
    b"a*",
    b"?",
    b"??",
    b"*b",
    b"k*:?",
    b"[ab]",
    b"[^a]*",
    b"[a-c]*",
    b"[c-a]",
    b"key:[12]",
    b"key:[^1]",
    b"\\*",
    b"*\\*",
    b"[",
    b"[a",
    b"[^",
    b"*[?]",
    b"*\\[?]",
    b"[\\]a]*",
    b"a\\",
    b"*:*",
    b"nothing*",
    b"k*k*k*k*k*k*k",
    b"\x00*",
    b"[\x80-\xff]*",
    b"*?*",
    b"?*?",
    b"[a-]*",
    b"[]a]*",
];

impl Pool {
    pub fn key(&self, rng: &mut Rng) -> Vec<u8> {
        rng.pick(&self.keys).clone()
    }

    pub fn field(&self, rng: &mut Rng) -> Vec<u8> {
        rng.pick(&self.fields).clone()
    }

    pub fn value(&self, rng: &mut Rng) -> Vec<u8> {
        match rng.below(8) {
            0 => {
                let len = rng.below(80);
                rng.bytes(len)
            }
            1 => vec![b'x'; rng.below(3000)],
            2 => (rng.next() as i64 >> rng.below(64)).to_string().into_bytes(),
            _ => rng.pick(VALUES).to_vec(),
        }
    }

    /// An integer, often a small one; sometimes not an integer.
    pub fn integer(&self, rng: &mut Rng) -> Vec<u8> {
        match rng.below(3) {
            0 => rng.pick(INTEGERS).as_bytes().to_vec(),
            1 => (rng.next() as i64 >> rng.below(64)).to_string().into_bytes(),
            _ => (rng.below(30) as i64 - 15).to_string().into_bytes(),
        }
    }

    /// A number; sometimes not a number.
    pub fn float(&self, rng: &mut Rng) -> Vec<u8> {
        match rng.below(4) {
            0 => {
                let (whole, places, power) =
                    (rng.next() as i64 >> rng.below(60), rng.next() >> rng.below(60), rng.below(40));
                let power = if rng.one_in(10) { power as i64 * 240 - 4900 } else { power as i64 - 20 };
                format!("{whole}.{places}e{power}").into_bytes()
            }
            1 => format!("{:.2}", (rng.below(10_000) as f64 - 5000.0) / 100.0).into_bytes(),
            2 => format!(
                "0x{:x}.{:x}p{}",
                rng.next() >> rng.below(60),
                rng.next() >> rng.below(60),
                rng.below(200) as i64 - 100
            )
            .into_bytes(),
            _ => rng.pick(FLOATS).as_bytes().to_vec(),
        }
    }

    pub fn pattern(&self, rng: &mut Rng) -> Vec<u8> {
        if rng.one_in(3) {
            let alphabet = b"**??aabb[[]]^--\\\\k:1\xff\x80";
            return (0..rng.below(8)).map(|_| *rng.pick(alphabet)).collect();
        }
        rng.pick(PATTERNS).to_vec()
    }
}

/// Current time in milliseconds since the Unix epoch.
pub fn now_millis() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64
}

/// A text in upper, lower, or mixed case.
pub fn cased(rng: &mut Rng, text: &str) -> Vec<u8> {
    match rng.below(3) {
        0 => text.to_uppercase().into_bytes(),
        1 => text.to_lowercase().into_bytes(),
        _ => text.bytes().map(|byte| if rng.one_in(2) { byte.to_ascii_uppercase() } else { byte }).collect(),
    }
}

/// Options in random order, with valid and invalid arguments.
pub fn options(rng: &mut Rng, max: usize, one: impl Fn(&mut Rng) -> Args) -> Args {
    (0..rng.below(max + 1)).flat_map(|_| one(rng)).collect()
}

/// Families of commands, with equal probability for each function. Some steps have an argument too many or
/// too few.
#[derive(Clone, Debug)]
pub struct Mix {
    pub pool: Pool,
    generators: Vec<Generator>,
    /// Average number of steps between two with a wrong number of arguments.
    wrong_arity: usize,
}

impl Mix {
    pub fn new(families: &[&[Generator]]) -> Self {
        Self { pool: Pool::default(), generators: families.concat(), wrong_arity: 40 }
    }

    pub fn step(&self, rng: &mut Rng) -> Step {
        let mut step = rng.pick(&self.generators)(rng, &self.pool);
        let name = String::from_utf8(step.args[0].clone()).expect("a name");
        step.args[0] = cased(rng, &name);
        if rng.one_in(self.wrong_arity) {
            match rng.below(3) {
                0 => step.args.truncate(1),
                1 => step.args.truncate(step.args.len() - usize::from(step.args.len() > 1)),
                _ => step.args.push(b"more".to_vec()),
            }
        }
        step
    }
}
