//! Warnings about configurations that are valid, but protect less than it seems.

use super::{ByteSize, Config, NativeAddress};
use crate::reserve::least_with_reserve;

impl Config {
    /// Returns one sentence for each setting that protects less than it seems. The server shows the sentences at its
    /// start, in `serve --explain` and at `/ready?verbose`.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.resp_password.is_set() {
            let open =
                if self.native == NativeAddress::Off { "HTTP reaches" } else { "HTTP and the native protocol reach" };
            found.push(format!(
                "resp_password protects only the port for Redis clients: {open} the same data without a password, so let \
                 only trusted programs connect to them"
            ));
        }
        let least = least_with_reserve(self.max_body_bytes.0, self.share_reserve_percent);
        if self.max_body_bytes_in_flight.0 < least {
            found.push(format!(
                "max_body_bytes_in_flight leaves no reserve of share_reserve_percent beside a body of max_body_bytes: one \
                 client can keep the bodies of all others out, except their first 16 KiB, so set it to at least {}",
                ByteSize(least.next_multiple_of(1 << 20))
            ));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{ByteSize, Config, ConfigLayer, Layers};

    #[test]
    fn a_password_that_protects_one_port_of_several_is_named() {
        let resolve = |given: &[(&str, &str)]| {
            let mut flags = ConfigLayer::default();
            given.iter().for_each(|(name, text)| flags.set(name, text).unwrap());
            Layers::new().flags(flags).resolve().unwrap()
        };
        let open = resolve(&[("resp", "127.0.0.1:7379")]);
        assert!(open.config.warnings().is_empty() && !open.explain().contains("protects"));
        let half = resolve(&[("resp", "127.0.0.1:7379"), ("resp_password", "hunter2")]);
        let [warning] = &half.config.warnings()[..] else { panic!() };
        assert!(warning.contains("HTTP and the native protocol") && !warning.contains("hunter2"), "{warning}");
        let text = half.explain();
        assert!(text.contains(&format!("warning: {warning}")) && !text.contains("hunter2"), "{text}");
        let http = resolve(&[("resp_password", "hunter2"), ("native", "off")]);
        assert!(!http.config.warnings()[0].contains("native"));
    }

    #[test]
    fn a_bound_on_bodies_without_room_for_a_reserve_is_named() {
        let warnings = |bytes: u64| {
            let (largest, most) = (ByteSize(16 << 20), ByteSize(bytes));
            Config { max_body_bytes: largest, max_body_bytes_in_flight: most, ..Config::default() }.warnings()
        };
        let [warning] = &warnings(16 << 20)[..] else { panic!() };
        assert!(warning.contains("at least 18MiB"), "{warning}");
        assert_eq!(warnings(18 << 20), Vec::<String>::new());
    }
}
