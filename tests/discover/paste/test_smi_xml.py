"""`nvidia-smi -q -x` says what `nvidia-smi -q` says."""

from __future__ import annotations

import dataclasses

import pytest

from nodeagent.discover.paste.part import Text
from nodeagent.discover.paste.read import read_paste
from nodeagent.model.gpu_report import GpuState, Version
from nodeagent.model.pasted import Pasted

LOG = """==============NVSMI LOG==============

Driver Version                            : 570.86.15
CUDA Version                              : 12.8

Attached GPUs                             : 1
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : Disabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Enabled
    GPU UUID                              : GPU-00000000-1111-2222-3333-444444444444
    Minor Number                          : 0
    GPU C2C Mode                          : Disabled
    GPU Reset Status
        Reset Required                    : Yes
        Drain and Reset Recommended       : No
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 3
                Device Max                : 5
                Host Max                  : 4
            Link Width
                Max                       : 16x
                Current                   : 8x
        Replays Since Reset               : 7
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Active
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : 1024 MiB
    BAR1 Memory Usage
        Total                             : 131072 MiB
    Compute Mode                          : Default
    Utilization
        GPU                               : 93 %
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 1
            SRAM Uncorrectable Parity     : 2
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 3
            DRAM Uncorrectable            : 4
        Aggregate
            DRAM Correctable              : 5
            DRAM Uncorrectable            : 6
            SRAM Threshold Exceeded       : No
    Retired Pages
        Double Bit ECC                    : 2
        Pending Page Blacklist            : No
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 1
        Pending                           : Yes
        Remapping Failure Occurred        : No
    Temperature
        GPU Current Temp                  : 61 C
        GPU T.Limit Temp                  : 26 C
        GPU Slowdown Temp                 : 90 C
        GPU Max Operating Temp            : 87 C
        Memory Current Temp               : 70 C
        Memory Max Operating Temp         : 95 C
    GPU Power Readings
        Average Power Draw                : 310.00 W
        Instantaneous Power Draw          : 320.50 W
        Current Power Limit               : 500.00 W
        Default Power Limit               : 700.00 W
    Fabric
        State                             : Completed
        Status                            : Success
        Health
            Route Unhealthy               : True
    Processes
        Process ID                        : 4242
            Name                          : /opt/model & co
            Used GPU Memory               : 512 MiB
"""

XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>570.86.15</driver_version>
  <cuda_version>12.8</cuda_version>
  <attached_gpus>1</attached_gpus>
  <gpu id="00000000:3B:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <persistence_mode>Disabled</persistence_mode>
    <mig_mode><current_mig>Disabled</current_mig><pending_mig>Enabled</pending_mig></mig_mode>
    <uuid>GPU-00000000-1111-2222-3333-444444444444</uuid>
    <minor_number>0</minor_number>
    <c2c_mode>Disabled</c2c_mode>
    <gpu_reset_status>
      <reset_required>Yes</reset_required>
      <drain_and_reset_recommended>No</drain_and_reset_recommended>
    </gpu_reset_status>
    <pci>
      <pci_bus_id>00000000:3B:00.0</pci_bus_id>
      <pci_gpu_link_info>
        <pcie_gen>
          <max_link_gen>5</max_link_gen>
          <current_link_gen>3</current_link_gen>
          <max_device_link_gen>5</max_device_link_gen>
          <max_host_link_gen>4</max_host_link_gen>
        </pcie_gen>
        <link_widths>
          <max_link_width>16x</max_link_width>
          <current_link_width>8x</current_link_width>
        </link_widths>
      </pci_gpu_link_info>
      <replay_counter>7</replay_counter>
    </pci>
    <performance_state>P0</performance_state>
    <clocks_event_reasons>
      <clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle>
      <clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>
      <clocks_event_reason_hw_slowdown>Active</clocks_event_reason_hw_slowdown>
    </clocks_event_reasons>
    <fb_memory_usage><total>81559 MiB</total><used>1024 MiB</used></fb_memory_usage>
    <bar1_memory_usage><total>131072 MiB</total><used>1 MiB</used></bar1_memory_usage>
    <cc_protected_memory_usage><total>0 MiB</total><used>0 MiB</used></cc_protected_memory_usage>
    <compute_mode>Default</compute_mode>
    <utilization><gpu_util>93 %</gpu_util><memory_util>5 %</memory_util></utilization>
    <ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>
    <ecc_errors>
      <volatile>
        <sram_correctable>1</sram_correctable>
        <sram_uncorrectable_parity>2</sram_uncorrectable_parity>
        <sram_uncorrectable_secded>0</sram_uncorrectable_secded>
        <dram_correctable>3</dram_correctable>
        <dram_uncorrectable>4</dram_uncorrectable>
      </volatile>
      <aggregate>
        <dram_correctable>5</dram_correctable>
        <dram_uncorrectable>6</dram_uncorrectable>
        <sram_threshold_exceeded>No</sram_threshold_exceeded>
      </aggregate>
    </ecc_errors>
    <retired_pages>
      <double_bit_retirement><retired_count>2</retired_count><retired_pagelist/>
      </double_bit_retirement>
      <pending_blacklist>No</pending_blacklist>
    </retired_pages>
    <remapped_rows>
      <remapped_row_corr>0</remapped_row_corr>
      <remapped_row_unc>1</remapped_row_unc>
      <remapped_row_pending>Yes</remapped_row_pending>
      <remapped_row_failure>No</remapped_row_failure>
    </remapped_rows>
    <temperature>
      <gpu_temp>61 C</gpu_temp>
      <gpu_temp_tlimit>26 C</gpu_temp_tlimit>
      <gpu_temp_slow_threshold>90 C</gpu_temp_slow_threshold>
      <gpu_temp_max_gpu_threshold>87 C</gpu_temp_max_gpu_threshold>
      <memory_temp>70 C</memory_temp>
      <gpu_temp_max_mem_threshold>95 C</gpu_temp_max_mem_threshold>
    </temperature>
    <gpu_power_readings>
      <average_power_draw>310.00 W</average_power_draw>
      <instant_power_draw>320.50 W</instant_power_draw>
      <current_power_limit>500.00 W</current_power_limit>
      <default_power_limit>700.00 W</default_power_limit>
    </gpu_power_readings>
    <module_power_readings><current_power_limit>9.00 W</current_power_limit></module_power_readings>
    <fabric>
      <state>Completed</state><status>Success</status>
      <health><route_unhealthy>True</route_unhealthy></health>
    </fabric>
    <processes>
      <process_info>
        <pid>4242</pid>
        <process_name>/opt/model &amp; co</process_name>
        <used_memory>512 MiB</used_memory>
      </process_info>
    </processes>
  </gpu>
</nvidia_smi_log>
"""


def pasted(text: str, name: str = "a.txt") -> Pasted:
    read = read_paste([Text(name=name, text=text)]).snapshot.pasted
    assert read is not None
    return read


def state(text: str) -> GpuState:
    (found,) = pasted(text).of(GpuState)
    return dataclasses.replace(found, line=0)


def test_the_two_forms_say_the_same() -> None:
    log, xml = state(LOG), state(XML)
    assert [
        f.name for f in dataclasses.fields(GpuState) if getattr(log, f.name) != getattr(xml, f.name)
    ] == []
    assert (xml.gen, xml.width, xml.gen_host_max) == (3, 8, 4)


def test_versions_and_lines() -> None:
    read = pasted(XML)
    assert [(x.component, x.version, x.line) for x in read.of(Version)] == [
        ("driver", "570.86.15", 4),
        ("cuda", "12.8", 5),
    ]
    assert [x.line for x in read.of(GpuState)] == [7]


@pytest.mark.parametrize("wrap", ["> {}", "{}"])
def test_quoted_in_a_report(wrap: str) -> None:
    lines = XML.replace("&amp; ", "").splitlines()
    text = "```xml\n" + "\n".join(lines) + "\n```\n"
    quoted = "\n".join(wrap.format(line) for line in text.splitlines())
    assert state(quoted).temp_c == 61


def test_a_lost_gpu_says_so() -> None:
    lost = XML.replace("<gpu_temp>61 C</gpu_temp>", "<gpu_temp>GPU is lost</gpu_temp>")
    assert "GPU is lost" in state(lost).errors[0]
    assert state(lost).temp_c is None


def test_what_is_cut_or_hostile_is_refused() -> None:
    assert "cut or not well-formed" in pasted(XML[: len(XML) // 2]).refused[0]
    bomb = XML.replace("[", "").replace(
        '"nvsmi_device_v12.dtd">', '"x" [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'
    )
    assert "declares entities" in pasted(bomb).refused[0]
