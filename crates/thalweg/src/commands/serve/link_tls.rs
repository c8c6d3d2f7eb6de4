//! TLS of the links between nodes, according to the configuration.
//!
//! Owns: the choice of the kind of TLS, reloading its files, and the warning about certificates that expire soon. Does
//! not own: certificates and sessions (`thalweg_cluster::PeerTls`).

use std::time::{Duration, SystemTime};

use thalweg_cluster::{PeerTls, PeerTlsFiles};
use thalweg_server::config::{Config, PeerPem};

use crate::failure::Failure;

/// Remaining validity of a certificate below which the server logs a warning.
const NEARLY_OVER: Duration = Duration::from_secs(14 * 24 * 3600);

/// Returns the TLS settings and certificates for the links between nodes; `None` for plain TCP, which is permitted only
/// on the loopback.
pub(crate) fn of(config: &Config) -> Result<Option<PeerTls>, Failure> {
    if !config.links_use_tls() {
        return Ok(None);
    }
    let tls = match (&config.cluster_ca, &config.cluster_certificate, &config.cluster_key) {
        (PeerPem::At(authorities), PeerPem::At(certificate), PeerPem::At(key)) => {
            let files =
                PeerTlsFiles { authorities: authorities.clone(), certificate: certificate.clone(), key: key.clone() };
            PeerTls::with_authority(files).map_err(|error| Failure::of(&error))?
        }
        // The check of the configuration ensures that either all of the files are configured or none.
        _ => PeerTls::without_authority().map_err(|error| Failure::of(&error))?,
    };
    warn_if_expiring(&tls);
    Ok(Some(tls))
}

/// Reads the files with certificates and keys again. Later connections between nodes use the new contents. Blocks while
/// it reads files.
pub(crate) fn reload(tls: &PeerTls) {
    if !tls.has_authority() {
        return;
    }
    match tls.reload() {
        Ok(()) => {
            tracing::info!("SIGHUP: new connections between nodes use the reloaded certificate");
            warn_if_expiring(tls);
        }
        Err(error) => {
            tracing::error!(%error, "SIGHUP: the certificate for other nodes could not be reloaded and is unchanged");
        }
    }
}

/// Logs a warning if the certificate that this node uses for links to other nodes expires soon.
pub(crate) fn warn_if_expiring(tls: &PeerTls) {
    let Some(validity) = tls.validity() else { return };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    if let Some(days) = days_left(validity.not_after, now) {
        tracing::warn!(
            "the certificate in cluster_certificate, or one of its chain, expires in {days} days, and then the other nodes \
             reject it: replace the files with `thalweg cluster create-cert --replace`, and send SIGHUP"
        );
    }
}

/// Returns the number of days until a certificate expires; `None` if this is not soon, that is, not within
/// [`NEARLY_OVER`].
fn days_left(not_after: i64, now: Duration) -> Option<u64> {
    let left = u64::try_from(not_after).unwrap_or(0).saturating_sub(now.as_secs());
    (left < NEARLY_OVER.as_secs()).then_some(left / (24 * 3600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_warned_of_two_weeks_before_its_end() {
        const DAY: i64 = 24 * 3600;
        let now = Duration::from_secs(100 * DAY as u64);
        assert_eq!(days_left(114 * DAY, now), None);
        assert_eq!(days_left(114 * DAY - 1, now), Some(13));
        assert_eq!(days_left(100 * DAY, now), Some(0));
        assert_eq!(days_left(99 * DAY, now), Some(0));
    }
}
