//! Which of device, driver and library lacks a feature.

use efa_verbs::Feature;

use super::explanation::Explanation;

/// What is known where a feature is missing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lacking {
    feature: Feature,
    /// PCI id of the device, which tells its generation; `None` where the device can't be opened.
    part: Option<u32>,
    /// The highest symbol version of the loaded libefa, which tells its age.
    symbols: u32,
}

/// Since when a feature exists.
struct Since {
    /// The first PCI id whose devices have it; `None` where that isn't known.
    part: Option<u32>,
    /// The first symbol version of libefa whose releases all know it.
    symbols: u32,
    /// Release of rdma-core that is new enough.
    release: u32,
    generation: &'static str,
    /// What to do without it.
    without: &'static str,
}

impl Since {
    /// The table of features.
    fn of(feature: Feature) -> Self {
        let since = |symbols, release, without| Since {
            part: None,
            symbols,
            release,
            generation: "",
            without,
        };
        match feature {
            Feature::RdmaRead => Since {
                part: Some(0xefa1),
                generation: "p4d",
                ..since(
                    1,
                    28,
                    "Without it, data goes in messages, which every device has.",
                )
            },
            Feature::RdmaWrite => Since {
                part: Some(0xefa2),
                generation: "p5",
                ..since(
                    3,
                    46,
                    "Without it, the peer can get the data where both have RDMA read, or it goes in \
                     messages.",
                )
            },
            Feature::RnrRetry => since(2, 44, "Without it, leave Config::rnr_retries at None."),
            Feature::SourceGid => since(2, 44, "Every transfer works without it."),
            Feature::UnsolicitedWriteRecv => since(4, 59, "Every transfer works without it."),
            Feature::CompletionChannel => since(
                2,
                44,
                "Without it, set Config::events to false: waiting polls the device then.",
            ),
            Feature::DmaBuf => since(1, 44, "Without it, copy the data to host memory."),
            Feature::DirectPath => since(4, 60, "DataPath::Auto goes through libefa without it."),
            _ => since(1, 44, "Do without it."),
        }
    }
}

impl Lacking {
    /// Looks at the device of that name and the loaded library.
    pub(super) fn on(device: &str, feature: Feature) -> Self {
        let context = efa_verbs::open_by_name(device).ok();
        Self {
            feature,
            part: context.map(|context| context.attributes().vendor_part_id),
            symbols: efa_verbs::efa_symbol_version(),
        }
    }

    pub(super) fn explanation(&self) -> Explanation {
        let feature = self.feature;
        let since = Since::of(feature);
        let Since {
            release,
            generation,
            without,
            ..
        } = since;
        let id = match self.part {
            Some(part) => format!("PCI id {part:#06x}"),
            None => "which could not be opened again".into(),
        };
        // The direct path is this project's own; driver and device have no say but this.
        if feature == Feature::DirectPath && self.symbols >= since.symbols {
            return match self.part {
                Some(0xefa0) => Explanation::new(
                    format!(
                        "The device ({id}) spreads a completion queue over several rings, which the \
                         direct path does not know."
                    ),
                    without,
                ),
                _ => Explanation::new(
                    "The direct path needs send entries of 64 bytes, and with Config::events rdma-core 60 \
                     or newer.",
                    without,
                ),
            };
        }
        if let (Some(first), Some(part)) = (since.part, self.part)
            && part < first
        {
            return Explanation::new(
                format!(
                    "The device ({id}) has no {feature}, which devices have from the {generation} \
                     generation on."
                ),
                without,
            );
        }
        if self.symbols < since.symbols {
            return Explanation::new(
                format!(
                    "The installed rdma-core is too old for {feature}, or nearly so: its libefa has symbol \
                     version EFA_1.{}, and {feature} needs rdma-core {release}.",
                    self.symbols
                ),
                format!("Install rdma-core {release} or newer and a current EFA driver. {without}"),
            );
        }
        let who = match (since.part, self.part) {
            (Some(_), Some(_)) => format!(
                "The EFA driver is too old for {feature}: devices of this generation ({id}) have it, and \
                 the installed rdma-core knows it."
            ),
            _ => format!(
                "The device ({id}) or its EFA driver has no {feature}; the installed rdma-core knows it."
            ),
        };
        Explanation::new(who, format!("Install a current EFA driver. {without}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(feature: Feature, part: Option<u32>, symbols: u32) -> String {
        let lacking = Lacking {
            feature,
            part,
            symbols,
        };
        lacking.explanation().to_string()
    }

    #[test]
    fn a_missing_write_is_blamed_on_device_library_or_driver_as_it_is() {
        let write = |part, symbols| of(Feature::RdmaWrite, part, symbols);
        let device = write(Some(0xefa1), 4);
        assert!(
            device.contains("The device (PCI id 0xefa1) has no RDMA write"),
            "{device}"
        );
        assert!(!device.contains("rdma-core"), "{device}");
        let library = write(Some(0xefa2), 2);
        assert!(
            library.contains("installed rdma-core is too old"),
            "{library}"
        );
        assert!(library.contains("rdma-core 46"), "{library}");
        let driver = write(Some(0xefa2), 4);
        assert!(driver.contains("EFA driver is too old"), "{driver}");
        let unknown = write(None, 4);
        assert!(unknown.contains("or its EFA driver"), "{unknown}");
    }

    #[test]
    fn a_missing_event_capability_has_nothing_to_do_with_rdma() {
        let text = of(Feature::CompletionChannel, Some(0xefa0), 4);
        assert!(
            text.contains("completion events") && text.contains("Config::events"),
            "{text}"
        );
        assert!(!text.contains("RDMA"), "{text}");
    }

    #[test]
    fn the_direct_path_asks_for_a_newer_library_only_where_that_is_what_is_missing() {
        let direct = |part, symbols| of(Feature::DirectPath, Some(part), symbols);
        assert!(direct(0xefa2, 3).contains("rdma-core is too old"));
        let first = direct(0xefa0, 4);
        assert!(
            first.contains("several rings") && !first.contains("rdma-core"),
            "{first}"
        );
        assert!(direct(0xefa2, 4).contains("64 bytes"));
    }

    #[test]
    fn every_feature_has_whole_sentences() {
        for feature in [
            Feature::RdmaRead,
            Feature::RdmaWrite,
            Feature::RnrRetry,
            Feature::SourceGid,
            Feature::UnsolicitedWriteRecv,
            Feature::CompletionChannel,
            Feature::DmaBuf,
            Feature::DirectPath,
            Feature::ServiceLevel,
        ] {
            for symbols in 1..8 {
                for part in [None, Some(0xefa0), Some(0xefa1), Some(0xefa4)] {
                    let text = of(feature, part, symbols);
                    assert!(text.ends_with('.') && !text.contains("  "), "{text}");
                }
            }
        }
    }
}
