"""Models of other toolkits as model folders of ours; one module for each format."""
