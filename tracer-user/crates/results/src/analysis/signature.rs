//! The performance signature of a request class: its service time free of load, so that a change of it is the
//! application's. `S = R − run queue − queue − downstream`: own time only, by utilisation of the host, 10th to 90th
//! percentile of the windows' means. Where waiting for a CPU is measured it is subtracted; `R·(1 − U)` would subtract what
//! one CPU and no I/O would wait (`docs/verdicts.md`).

/// Buckets of utilisation, each a tenth.
pub const BUCKETS: usize = 10;
/// Windows in a bucket for it to be shown.
pub const LEAST: usize = 5;

/// One window's mean of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    /// Utilisation of the host, 0 to 1.
    pub utilisation: f64,
    /// Requests in the window.
    pub requests: f64,
    /// Their CPU, and their time blocked other than for calls, seconds.
    pub cpu_s: f64,
    /// See `cpu_s`.
    pub blocked_s: f64,
}

/// Service time at one utilisation, seconds a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bucket {
    /// Lower bound of the utilisation; the next bucket's is a tenth higher.
    pub utilisation: f64,
    /// Windows in it.
    pub windows: usize,
    /// Percentiles of the windows' means.
    pub p10_s: f64,
    /// See `p10_s`.
    pub p50_s: f64,
    /// See `p10_s`.
    pub p90_s: f64,
    /// Of which CPU, and of which blocked, on average.
    pub cpu_s: f64,
    /// See `cpu_s`.
    pub blocked_s: f64,
}

/// The signature of a class over some windows; buckets with fewer than [`LEAST`] windows are left out.
pub fn of(means: &[Mean]) -> Vec<Bucket> {
    let mut buckets: [Vec<&Mean>; BUCKETS] = Default::default();
    for mean in means.iter().filter(|mean| mean.requests > 0.0) {
        let at = (mean.utilisation.clamp(0.0, 1.0) * BUCKETS as f64) as usize;
        buckets[at.min(BUCKETS - 1)].push(mean);
    }
    let bucket = |(at, means): (usize, &Vec<&Mean>)| {
        let mut each: Vec<f64> = means.iter().map(|mean| (mean.cpu_s + mean.blocked_s) / mean.requests).collect();
        each.sort_by(f64::total_cmp);
        let percentile = |share: f64| each[((each.len() - 1) as f64 * share).round() as usize];
        let requests: f64 = means.iter().map(|mean| mean.requests).sum();
        (each.len() >= LEAST).then(|| Bucket {
            utilisation: at as f64 / BUCKETS as f64,
            windows: each.len(),
            p10_s: percentile(0.1),
            p50_s: percentile(0.5),
            p90_s: percentile(0.9),
            cpu_s: means.iter().map(|mean| mean.cpu_s).sum::<f64>() / requests,
            blocked_s: means.iter().map(|mean| mean.blocked_s).sum::<f64>() / requests,
        })
    };
    buckets.iter().enumerate().filter_map(bucket).collect()
}

/// Service time after ÷ before, over the buckets that both have, weighted by the windows after. `None`: they share none.
pub fn ratio(before: &[Bucket], after: &[Bucket]) -> Option<f64> {
    let (mut sum, mut windows) = (0.0, 0.0);
    for now in after {
        let then = before.iter().find(|then| (then.utilisation - now.utilisation).abs() < 1e-9);
        if let Some(then) = then.filter(|then| then.p50_s > 0.0) {
            sum += now.windows as f64 * now.p50_s / then.p50_s;
            windows += now.windows as f64;
        }
    }
    (windows > 0.0).then(|| sum / windows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn means(cpu: f64, blocked: f64) -> Vec<Mean> {
        (0..100)
            .map(|t| {
                let requests = 50.0 + f64::from(t % 7);
                // Load moves utilisation from 0.2 to 0.6.
                let utilisation = 0.2 + 0.4 * f64::from(t) / 100.0;
                Mean { utilisation, requests, cpu_s: cpu * requests, blocked_s: blocked * requests }
            })
            .collect()
    }

    #[test]
    fn load_leaves_it_alone_and_a_change_shows() {
        let (before, after) = (of(&means(0.010, 0.005)), of(&means(0.015, 0.005)));
        assert_eq!(before.len(), 4, "{before:?}");
        assert!(before.iter().all(|bucket| (bucket.p50_s - 0.015).abs() < 1e-9 && bucket.p10_s <= bucket.p90_s));
        assert!((ratio(&before, &after).unwrap() - 20.0 / 15.0).abs() < 1e-9);
        assert!((after[0].cpu_s - 0.015).abs() < 1e-9 && (after[0].blocked_s - 0.005).abs() < 1e-9);
    }

    #[test]
    fn few_windows_and_absurd_ones_show_nothing() {
        assert!(of(&[]).is_empty() && of(&means(0.01, 0.0)[..LEAST - 1]).is_empty());
        let odd = Mean { utilisation: f64::NAN, requests: 1.0, cpu_s: 0.0, blocked_s: 0.0 };
        assert_eq!(of(&[odd; LEAST]).len(), 1);
        assert_eq!(ratio(&of(&[odd; LEAST]), &of(&[odd; LEAST])), None);
    }
}
