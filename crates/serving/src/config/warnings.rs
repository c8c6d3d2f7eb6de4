//! Warnings about configurations that are valid, but protect less than they seem to.

use super::{Config, NativeAddress};

impl Config {
    /// Returns a sentence for each setting that protects less than it seems to. The server shows the sentences at its
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
        found
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{ConfigLayer, Layers};

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
}
