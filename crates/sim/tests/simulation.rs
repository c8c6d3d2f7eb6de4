//! Short simulations.

use thalweg_sim::{Settings, run};

#[test]
fn a_cluster_with_faults_breaks_no_promise() {
    for seed in 1..=5 {
        let report = run(&Settings { seed, ..Settings::default() });
        eprintln!("{report}");
        assert_eq!(report.violations, Vec::<String>::new(), "{}", report.story());
        assert!(report.checked > 1000, "{report}");
    }
}
