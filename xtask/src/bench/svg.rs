//! Throughput and latency drawn.

use std::fmt::Write;

use super::WITH_SPEED;
use super::results::Results;
use super::table::bytes;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 260.0;
const MARGIN: f64 = 60.0;
/// One for each variant whose speed is measured.
const COLOURS: [&str; WITH_SPEED.len()] = ["#444444", "#1f77b4", "#2ca02c", "#ff7f0e", "#d62728"];

/// Two charts side by side, both with logarithmic axes.
pub fn draw(results: &Results) -> String {
    let total = 2.0 * (WIDTH + 2.0 * MARGIN);
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="white"/>
"#,
        HEIGHT + 2.5 * MARGIN
    );
    let throughput = |size: u32, name: &str| {
        let speed = results.speed.get(&(name.to_owned(), size))?;
        Some(speed.bytes_per_second / 1e6)
    };
    let latency =
        |size: u32, name: &str| Some(results.speed.get(&(name.to_owned(), size))?.p50 * 1e6);
    let mut sizes: Vec<u32> = results.speed.keys().map(|(_, size)| *size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    chart(&mut svg, MARGIN, "throughput, MB/s", &sizes, throughput);
    chart(
        &mut svg,
        WIDTH + 3.0 * MARGIN,
        "latency, median, µs",
        &sizes,
        latency,
    );
    for (i, name) in WITH_SPEED.iter().enumerate() {
        let x = MARGIN + (i % 3) as f64 * 300.0;
        let y = HEIGHT + 1.9 * MARGIN + (i / 3) as f64 * 18.0;
        let _ = writeln!(
            svg,
            r#"<rect x="{x}" y="{}" width="12" height="12" fill="{}"/><text x="{}" y="{y}">{name}</text>"#,
            y - 11.0,
            COLOURS[i],
            x + 18.0
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn chart(
    svg: &mut String,
    left: f64,
    title: &str,
    sizes: &[u32],
    value: impl Fn(u32, &str) -> Option<f64>,
) {
    let values: Vec<f64> = sizes
        .iter()
        .flat_map(|&size| WITH_SPEED.map(|name| (size, name)))
        .filter_map(|(size, letter)| value(size, letter))
        .filter(|value| *value > 0.0)
        .collect();
    let (Some(first), Some(last)) = (sizes.first(), sizes.last()) else {
        return;
    };
    let low = values
        .iter()
        .copied()
        .fold(f64::INFINITY, f64::min)
        .log10()
        .floor();
    let high = values
        .iter()
        .copied()
        .fold(0.0, f64::max)
        .log10()
        .ceil()
        .max(low + 1.0);
    let span = (f64::from(*last) / f64::from(*first)).log2().max(1.0);
    let x = |size: u32| left + (f64::from(size) / f64::from(*first)).log2() / span * WIDTH;
    let y = |value: f64| MARGIN + HEIGHT - (value.log10() - low) / (high - low) * HEIGHT;
    let _ = writeln!(
        svg,
        r#"<text x="{left}" y="{}" font-size="14">{title}</text>"#,
        MARGIN - 20.0
    );
    let _ = writeln!(
        svg,
        r##"<rect x="{left}" y="{MARGIN}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#cccccc"/>"##
    );
    for power in low as i32..=high as i32 {
        let at = y(10f64.powi(power));
        let _ = writeln!(
            svg,
            r##"<path d="M{left} {at}h{WIDTH}" stroke="#eeeeee"/><text x="{}" y="{}" text-anchor="end">{}</text>"##,
            left - 6.0,
            at + 4.0,
            10f64.powi(power)
        );
    }
    for &size in sizes {
        let _ = writeln!(
            svg,
            r#"<text x="{}" y="{}" text-anchor="middle">{}</text>"#,
            x(size),
            MARGIN + HEIGHT + 18.0,
            bytes(size)
        );
    }
    for (i, name) in WITH_SPEED.iter().enumerate() {
        let points: Vec<String> = sizes
            .iter()
            .filter_map(|&size| Some(format!("{:.1},{:.1}", x(size), y(value(size, name)?))))
            .collect();
        if !points.is_empty() {
            let _ = writeln!(
                svg,
                r#"<polyline points="{}" fill="none" stroke="{}" stroke-width="2"/>"#,
                points.join(" "),
                COLOURS[i]
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::Speed;

    #[test]
    fn each_measured_variant_has_a_line_in_both_charts() {
        let mut results = Results::default();
        for size in [8, 4096] {
            for name in ["c-poll-start", "put-direct"] {
                let speed = Speed {
                    bytes_per_second: 1e6,
                    p50: 1e-4,
                    p99: 2e-4,
                    p999: 3e-4,
                };
                results.speed.insert((name.to_owned(), size), speed);
            }
        }
        let svg = draw(&results);
        assert_eq!(svg.matches("<polyline").count(), 4);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn nothing_measured_is_drawn_as_nothing() {
        assert!(!draw(&Results::default()).contains("<polyline"));
    }
}
