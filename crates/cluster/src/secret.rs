//! The secret of a cluster, and the proofs of the handshake.
//!
//! Owns: HMAC-SHA256 over the transcript, random numbers, and the number of this process's run. Does not own: the files
//! that contain the secret.

use std::{fmt, sync::OnceLock};

use aws_lc_rs::{constant_time::verify_slices_are_equal, hmac, rand};
use thalweg_types::NodeId;
use thalweg_wire::peer::{Nonce, PeerRun, Role, sealed_bytes, transcript};

/// Secret of 256 bits that all nodes of a cluster share. Its value is never printed.
#[derive(Clone)]
pub struct Secret(hmac::Key);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Values of one handshake that both sides include in their proofs of the secret.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proven<'a> {
    pub hello: &'a [u8],
    pub version: u16,
    pub acceptor: NodeId,
    pub nonce: &'a Nonce,
    /// Identifier of the encrypted session; empty over plain TCP.
    pub binding: &'a [u8],
}

impl Secret {
    /// Creates a secret from its bytes.
    #[must_use]
    pub fn new(bytes: &[u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    pub(crate) fn prove(&self, role: Role, proven: Proven<'_>) -> Nonce {
        let tag = hmac::sign(&self.0, &bytes_of(role, proven));
        Nonce(tag.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// Returns true if `proof` is the proof of this secret for the handshake `proven`. Takes the same time for right
    /// and wrong proofs, so timing reveals nothing.
    pub(crate) fn verify(&self, role: Role, proven: Proven<'_>, proof: &Nonce) -> bool {
        hmac::verify(&self.0, &bytes_of(role, proven), &proof.0).is_ok()
    }
}

impl Secret {
    /// Writes the seal into the last field of a hello's body. The seal is an HMAC of the other fields, with this secret
    /// as the key.
    pub(crate) fn seal(&self, hello: &mut [u8]) {
        let Some((parts, seal)) = sealed_bytes(hello) else { return };
        let (tag, at) = (self.sign(parts), hello.len() - seal.len());
        hello[at..].copy_from_slice(tag.as_ref());
    }

    /// Returns true if the seal of a hello, an HMAC of its other fields, was made with this secret.
    pub(crate) fn verify_seal(&self, hello: &[u8]) -> bool {
        sealed_bytes(hello)
            .is_some_and(|(parts, seal)| verify_slices_are_equal(self.sign(parts).as_ref(), seal).is_ok())
    }

    /// Computes the HMAC of two byte strings as if they were one, without joining them in memory. So a stranger's hello
    /// does not make this node allocate memory.
    fn sign(&self, parts: [&[u8]; 2]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.0);
        parts.iter().for_each(|part| context.update(part));
        context.sign()
    }
}

fn bytes_of(role: Role, proven: Proven<'_>) -> Vec<u8> {
    let Proven { hello, version, acceptor, nonce, binding } = proven;
    transcript(role, hello, version, acceptor, nonce, binding)
}

/// Returns a random number of 256 bits, which practically never repeats.
pub(crate) fn nonce() -> Nonce {
    let mut bytes = [0; 32];
    rand::fill(&mut bytes).expect("the system provides random numbers");
    Nonce(bytes)
}

/// Returns the number of this process's run. All nodes in this process have the same number, even a node that stops and
/// starts again. So other nodes never take it for a copy of itself.
pub(crate) fn own_run() -> PeerRun {
    static RUN: OnceLock<PeerRun> = OnceLock::new();
    *RUN.get_or_init(|| {
        let mut bytes = [0; 16];
        rand::fill(&mut bytes).expect("the system provides random numbers");
        PeerRun(bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_holds_for_its_secret_and_hello_only() {
        let secret = Secret::new(&[1; 32]);
        let mut hello = vec![7; 100];
        secret.seal(&mut hello);
        assert!(secret.verify_seal(&hello) && !Secret::new(&[2; 32]).verify_seal(&hello));
        for at in 0..hello.len() {
            let mut changed = hello.clone();
            changed[at] ^= 1;
            assert!(!secret.verify_seal(&changed), "byte {at}");
        }
        assert!(!secret.verify_seal(&hello[..31]) && !secret.verify_seal(b""));
    }

    #[test]
    fn a_proof_holds_for_its_secret_side_and_connection_only() {
        let (secret, other) = (Secret::new(&[1; 32]), Secret::new(&[2; 32]));
        let (nonce, later) = (Nonce([3; 32]), Nonce([4; 32]));
        let proven = Proven { hello: b"hello", version: 1, acceptor: NodeId(7), nonce: &nonce, binding: b"" };
        let proof = secret.prove(Role::Dialler, proven);
        assert!(secret.verify(Role::Dialler, proven, &proof));
        assert!(!other.verify(Role::Dialler, proven, &proof));
        assert!(!secret.verify(Role::Acceptor, proven, &proof));
        assert!(!secret.verify(Role::Dialler, Proven { nonce: &later, ..proven }, &proof));
        assert_ne!(super::nonce(), super::nonce());
        assert_eq!(format!("{secret:?}"), "Secret");
    }
}
