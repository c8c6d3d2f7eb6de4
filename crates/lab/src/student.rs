//! Quantiles of Student's t distribution, for the ends of confidence intervals.
//!
//! The distribution function is a regularised incomplete beta function, computed by its continued fraction (DLMF
//! 8.17.22, evaluated by Lentz's method). A quantile is found by bisection. Degrees of freedom need not be whole.

/// Number of steps of the bisection. Each step halves the error, so the result has the precision of `f64`.
const BISECTIONS: u32 = 100;
/// Maximum number of terms of the continued fraction. For all degrees of freedom of a benchmark, it converges after a
/// few dozen terms.
const MAX_TERMS: u32 = 500;
/// Value that replaces a zero denominator in Lentz's method.
const TINY: f64 = 1e-300;

/// Returns the number `t` for which a t-distributed value lies between `-t` and `t` with probability `confidence`, at
/// `degrees` degrees of freedom. `confidence` must be above 0 and below 1, and `degrees` above 0.
pub(crate) fn two_sided_quantile(confidence: f64, degrees: f64) -> f64 {
    assert!(confidence > 0.0 && confidence < 1.0 && degrees > 0.0, "{confidence} at {degrees} degrees of freedom");
    let outside = 1.0 - confidence;
    let (mut low, mut high) = (0.0, 1.0);
    while probability_outside(high, degrees) > outside && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(low, high);
        if probability_outside(middle, degrees) > outside {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// Returns the probability that a t-distributed value is below `-t` or above `t`.
fn probability_outside(t: f64, degrees: f64) -> f64 {
    incomplete_beta(degrees / (degrees + t * t), degrees / 2.0, 0.5)
}

/// Returns the regularised incomplete beta function I_x(a, b) for `x` from 0 to 1.
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p()).exp();
    // The continued fraction converges fast only if `x` is below the mean. Otherwise the symmetry of the function gives
    // the result.
    if x < (a + 1.0) / (a + b + 2.0) {
        front * beta_fraction(x, a, b) / a
    } else {
        1.0 - front * beta_fraction(1.0 - x, b, a) / b
    }
}

fn beta_fraction(x: f64, a: f64, b: f64) -> f64 {
    let nonzero = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / nonzero(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = d;
    for term in (1..MAX_TERMS).map(f64::from) {
        let even = term * (b - term) * x / ((a + 2.0 * term - 1.0) * (a + 2.0 * term));
        let odd = -(a + term) * (a + b + term) * x / ((a + 2.0 * term) * (a + 2.0 * term + 1.0));
        let mut step = 1.0;
        for coefficient in [even, odd] {
            d = 1.0 / nonzero(1.0 + coefficient * d);
            c = nonzero(1.0 + coefficient / c);
            step = c * d;
            fraction *= step;
        }
        if (step - 1.0_f64).abs() < 1e-15 {
            break;
        }
    }
    fraction
}

/// Returns the logarithm of the gamma function of a positive number. Lanczos's approximation (g = 7, 9 terms) is exact
/// to about 15 digits.
fn ln_gamma(x: f64) -> f64 {
    const G: f64 = 7.0;
    const FIRST: f64 = 0.999_999_999_999_809_9;
    const TERMS: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x < 0.5 {
        // The approximation is valid for numbers from 0.5 on. The reflection formula gives the result for smaller ones.
        let pi = std::f64::consts::PI;
        return (pi / (pi * x).sin()).ln() - ln_gamma(1.0 - x);
    }
    let x = x - 1.0;
    let sum = TERMS.iter().zip(1..).fold(FIRST, |sum, (term, at)| sum + term / (x + f64::from(at)));
    let base = x + G + 0.5;
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * base.ln() - base + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (degrees, expected) in
            [(1.0, 12.706), (2.0, 4.303), (5.0, 2.571), (10.0, 2.228), (30.0, 2.042), (1000.0, 1.962)]
        {
            let got = two_sided_quantile(0.95, degrees);
            assert!((got - expected).abs() < 6e-4, "{got} for {expected} at {degrees}");
        }
        assert!((two_sided_quantile(0.99, 4.0) - 4.604).abs() < 6e-4);
        // For degrees of freedom that are not whole, the quantile lies between those of the neighbouring whole ones.
        assert!((2.571..2.776).contains(&two_sided_quantile(0.95, 4.5)));
    }

    #[test]
    fn the_gamma_function_has_its_known_values() {
        assert!((ln_gamma(5.0) - 24.0_f64.ln()).abs() < 1e-12);
        assert!((ln_gamma(0.5) - std::f64::consts::PI.sqrt().ln()).abs() < 1e-12);
        assert!((ln_gamma(0.25) - 3.625_609_908_221_908_f64.ln()).abs() < 1e-12);
    }
}
