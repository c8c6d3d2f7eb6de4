//! Well-formed commands of every kind, on few names, so that what they do to each other is reached:
//! transactions, deadlines and leases, deletes by prefix, history, producers, consumer groups.
//!
//! Two machines get the same entries; one is reopened wherever the input says. Never a panic or a stop; the
//! same outcomes, the same rows byte for byte, and the same answers to readers.

#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_fuzz::{
    Input,
    machine::Bench,
    random::{Generator, Puts},
};
use thalweg_types::command::{CommandError, Framed};

/// An entry of some commands.
fn entry(generator: &mut Generator, input: &mut Input<'_>) -> Vec<u8> {
    let mut payload = Vec::new();
    for _ in 0..=input.below(6) {
        let (command, mut framed) = (generator.command(input), Framed::new());
        let encoded = framed.encode(|out| {
            out.extend_from_slice(&command);
            Ok::<_, CommandError>(())
        });
        encoded.expect("a command within limits");
        payload.extend_from_slice(framed.bytes());
    }
    payload
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let (one, mut two) = (Bench::new(), Bench::new());
    let mut generator = Generator::new(&mut input, Puts::Anywhere);
    for command in generator.names(&mut input) {
        for bench in [&one, &two] {
            bench.command(|out| {
                out.extend_from_slice(&command);
                Ok(())
            });
        }
    }
    while !input.is_empty() {
        let kind = input.byte();
        let payload = entry(&mut generator, &mut input);
        let later = if kind == 255 { input.number() } else { u64::from(kind & 0x3f) * 1000 };
        generator.time = one.machine.applied().time.0.saturating_add(later);
        assert_eq!(one.entry(&payload, later), two.entry(&payload, later), "the same outcomes");
        if kind & 0x40 != 0 {
            two = two.reopened();
        }
        if kind & 0x80 != 0 {
            assert_eq!(one.read_all(), two.read_all(), "the same answers");
        }
    }
    assert_eq!(one.read_all(), two.read_all(), "the same answers at the end");
    assert_eq!(one.rows(), two.rows(), "byte for byte");
});
